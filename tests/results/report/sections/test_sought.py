"""What a sweep seeks beside the rate, over its axes. Every measured number is MADE UP for the test."""

from __future__ import annotations

from itertools import product
from math import nan

import pytest

from conf.types.sweep_spec import Objective
from results.analysis.findings.objective import sought_sentences
from results.render.section import KeyFigures
from results.report.sections import answer
from results.report.sections.sought import section
from results.report.sections.trials import section as trials_section
from sweeps.trial import Trial
from tests.results.conftest import WriteSweep, performance, trial
from tests.results.report.sections.conftest import plots_of, rows_of, shown_of, subject_of, text_of


@pytest.mark.parametrize("spread", [0.0, 1e-13], ids=["equal", "equal but for rounding"])
def test_of_points_that_all_reach_the_same_no_axis_is_said_to_matter(write_sweep: WriteSweep, spread: float) -> None:
    trials: list[Trial] = []
    for tensor, micro, recompute in product((1, 2), (1, 2), ("none", "selective", "full")):
        made = trial("", world_size=2, tensor_parallel_size=tensor, micro_batch_size=micro, recompute=recompute)
        axes = {
            "parallel.tensor_parallel_size": tensor,
            "batch.micro_batch_size": micro,
            "parallel.recompute": recompute,
        }
        trials.append(made.model_copy(update={"trial_id": f"t{len(trials)}", "point": axes}))
    losses = {each.trial_id: 10.8 + number * spread for number, each in enumerate(trials)}
    sweep = write_sweep(trials, {name: performance(100.0, 2, final_loss=loss) for name, loss in losses.items()})
    sought = sweep.record.model_copy(update={"objective": ("loss",)})
    found = shown_of(section, sweep._replace(record=sought))
    assert len(rows_of(found, "sought-points")) == len(trials) == 12
    assert "Which axis mattered" not in text_of(found)


@pytest.mark.parametrize("objective", [("loss",), ("loss", "step_time")])
@pytest.mark.parametrize(("num_points", "headline"), [(1, "The only point diverged."), (2, "All 2 points diverged.")])
def test_where_every_training_diverged_that_is_the_answer(
    write_sweep: WriteSweep, objective: tuple[Objective, ...], num_points: int, headline: str
) -> None:
    trials = [trial(f"t{size}", micro_batch_size=size) for size in range(1, num_points + 1)]
    sweep = write_sweep(trials, {each.trial_id: performance(100.0, final_loss=nan) for each in trials})
    sought = sweep.record.model_copy(update={"objective": objective})
    assert sought_sentences(sought, sweep.read(), "smoke") == (headline, "", "")
    shown = answer.section(subject_of(sweep._replace(record=sought)))
    assert (shown.finding, shown.blocks) == (headline, ())


@pytest.mark.parametrize(
    ("objective", "notes"),
    [
        (("loss",), ["tp1-pp1-dp1-mb1-gb8; next 3.000"]),
        (("loss", "throughput"), ["tp1-pp1-dp1-mb1-gb8", "tp1-pp1-dp1-mb1-gb8"]),
    ],
)
def test_the_next_best_is_named_where_one_objective_ranks_the_points(
    write_sweep: WriteSweep, objective: tuple[Objective, ...], notes: list[str]
) -> None:
    trials = [trial(f"t{size}", micro_batch_size=size) for size in (1, 2, 4)]
    measured = {"t1": (2.0, 100.0), "t2": (3.0, 50.0), "t4": (4.0, 300.0)}
    how = {name: performance(rate, losses=(5.0, loss), final_loss=loss) for name, (loss, rate) in measured.items()}
    sweep = write_sweep(trials, how)
    shown = answer.section(subject_of(sweep._replace(record=sweep.record.model_copy(update={"objective": objective}))))
    (figures,) = (block for block in shown.blocks if isinstance(block, KeyFigures))
    assert [figure.note for figure in figures.figures] == notes


def test_what_diverged_does_not_press_the_others_onto_the_axis(write_sweep: WriteSweep) -> None:
    trials = [
        trial(f"t{size}", micro_batch_size=size).model_copy(update={"point": {"batch.micro_batch_size": size}})
        for size in (1, 2, 4, 8)
    ]
    curves = {"t1": (5.0, 3.0), "t2": (5.5, 2.0), "t4": (5.0, 1e9, 2e17), "t8": (5.0, 6e3, nan)}
    measured = {name: performance(100.0, losses=losses, final_loss=losses[-1]) for name, losses in curves.items()}
    sweep = write_sweep(trials, measured)
    found = shown_of(section, sweep._replace(record=sweep.record.model_copy(update={"objective": ("loss",)})))
    over, losses = (plot for plot in plots_of(found) if plot.name in ("over-batch-micro_batch_size", "sought-losses"))
    assert [row["value"] for row in over.spec["data"]["values"]] == [2.0, 3.0]
    assert over.caption.endswith("Left out: 2 points that diverged.")
    assert sorted(row["loss"] for row in losses.spec["data"]["values"]) == [2.0, 3.0, 5.0, 5.0, 5.0, 5.5]
    assert losses.caption.endswith("Of those that diverged, losses above 5.500 are left out.")


def test_losses_that_are_all_the_same_are_not_rounded_on_their_axis(write_sweep: WriteSweep) -> None:
    trials = [
        trial(f"t{size}", micro_batch_size=size).model_copy(update={"point": {"batch.micro_batch_size": size}})
        for size in (1, 2)
    ]
    formats = []
    for last in (0.571, 0.6):
        losses = dict(zip(("t1", "t2"), (0.571, last), strict=True))
        how = {name: performance(100.0, losses=(4.0, loss), final_loss=loss) for name, loss in losses.items()}
        sweep = write_sweep(trials, how, name=f"last-{last}")
        found = shown_of(section, sweep._replace(record=sweep.record.model_copy(update={"objective": ("loss",)})))
        (over,) = (plot for plot in plots_of(found) if plot.name == "over-batch-micro_batch_size")
        formats.append(over.spec["layer"][0]["encoding"]["y"]["axis"])
    assert formats == [{"format": ".4~g"}, {}]


def test_every_line_through_the_values_is_in_a_colour_that_follows_the_page(write_sweep: WriteSweep) -> None:
    axes = [(tensor, micro) for tensor in (1, 2) for micro in (1, 2)]
    keys = ("parallel.tensor_parallel_size", "batch.micro_batch_size")
    trials = [
        trial(f"t{tensor}{micro}", world_size=2, tensor_parallel_size=tensor, micro_batch_size=micro).model_copy(
            update={"point": dict(zip(keys, (tensor, micro), strict=True))}
        )
        for tensor, micro in axes
    ]
    sweep = write_sweep(trials, {each.trial_id: performance(100.0, 2) for each in trials})
    found = shown_of(section, sweep._replace(record=sweep.record.model_copy(update={"objective": ("loss",)})))
    (lines,) = (plot for plot in plots_of(found) if plot.name == "sought-coordinates")
    assert lines.spec["mark"]["color"] == "var(--measured)"
    assert "color" not in lines.spec["encoding"]
    assert lines.spec["encoding"]["opacity"]["scale"]["range"] == [1.0, 0.25]


def test_a_page_about_a_loss_ranks_nothing_by_its_rate(write_sweep: WriteSweep) -> None:
    """The slowest has the best loss, and stands where the record has it."""
    trials = [trial(f"t{size}", micro_batch_size=size) for size in (1, 2, 4)]
    rates = {"t1": 100.0, "t2": 300.0, "t4": 200.0}
    sweep = write_sweep(trials, {name: performance(rate, final_loss=rate) for name, rate in rates.items()})
    sought = sweep._replace(record=sweep.record.model_copy(update={"objective": ("loss",)}))
    found = shown_of(trials_section, sought)
    assert "Ranked" not in text_of(found)
    assert not plots_of(found)
    rows = rows_of(found, "trials")
    assert "#" not in rows[0]
    assert [row["layout"] for row in rows] == [each.planned.label for each in trials]
