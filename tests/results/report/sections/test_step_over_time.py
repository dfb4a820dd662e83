"""The timeline of the best plan, as predicted."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from costs import IMPLEMENTATIONS, estimate
from costs.trainers import TRISWEEP
from results.render.section import Plot, Section
from results.report.pipeline_spans import predicted_step
from results.report.sections.step_over_time import section
from sweeps.trial import Trial
from tests.composed import load
from tests.results.conftest import FULL, WriteSweep, experiment, performance, trial
from tests.results.report.sections.conftest import drawn, plots_of, rows_of, shown_of, subject_of, text_of

PIPED = trial("piped", model=FULL, world_size=64, tensor_parallel_size=4, pipeline_parallel_size=16)


def planned(**point: Any) -> Trial:
    """With the cost model's own estimate, and not a made-up one."""
    plan = trial("plan", model=FULL, world_size=64, **point)
    assert plan.experiment is not None
    return plan.model_copy(update={"estimate": estimate(plan.experiment), "infeasible_reason": None})


def shown(write_sweep: WriteSweep, plan: Trial) -> Section:
    return shown_of(section, write_sweep((), plan=(plan,)))


@pytest.mark.parametrize("recipe", ["frontier-22b", "frontier-175b"])
def test_passes_laid_out_one_by_one_take_as_long_as_the_closed_formula_says_for_published_recipes(recipe: str) -> None:
    value = load(
        [f"model=gpt-{recipe.split('-')[1]}", "cluster=frontier", f"parallel={recipe}", "batch.global_batch_size=640"]
    ).experiment()
    assert predicted_step(value, TRISWEEP).total_seconds == pytest.approx(estimate(value).step_seconds)


@pytest.mark.parametrize(
    ("schedule", "chunks", "low", "high"),
    [
        ("1f1b", 1, 0.0, 0.04),
        ("gpipe", 1, -0.01, 0.04),
        ("interleaved", 3, -0.16, 0.01),
        ("zero-bubble", 1, -0.22, 0.07),
    ],
)
def test_where_the_formula_approximates_it_is_off_by_no_more_than_it_promises(
    schedule: str, chunks: int, low: float, high: float
) -> None:
    """docs/cost-model.md names these bounds, for ends that are heavier than the other stages."""
    value = experiment(
        model=FULL,
        world_size=64,
        tensor_parallel_size=4,
        pipeline_parallel_size=8,
        global_batch_size=64,
        schedule=schedule,
        virtual_pipeline_size=chunks,
    )
    step, closed = predicted_step(value, TRISWEEP), estimate(value).step_seconds
    assert low - 1e-9 <= step.total_seconds / closed - 1 <= high


def test_a_rank_does_one_thing_after_another_until_all_are_done() -> None:
    assert PIPED.experiment is not None
    step = predicted_step(PIPED.experiment, TRISWEEP)
    for of_stage in step.spans:
        assert of_stage[0].start == 0.0
        assert all(before.end == pytest.approx(after.start) for before, after in pairwise(of_stage))
        assert of_stage[-1].end == pytest.approx(step.total_seconds)


def test_the_finding_names_the_plan_the_step_and_the_stage_that_waits_longest(write_sweep: WriteSweep) -> None:
    found = shown(write_sweep, planned(tensor_parallel_size=4, pipeline_parallel_size=16))
    assert "`tp4-pp16-dp1-mb1-gb8`, predicted to be the fastest per device, is predicted to take" in found.finding
    assert "has nothing to do for" in found.finding
    assert "the formula says by which plans are ranked" in text_of(found)
    assert {row["stage"] for row in rows_of(found, "timeline-stages")} == {str(stage) for stage in range(16)}


def test_a_picture_can_be_drawn_and_holds_every_stage(write_sweep: WriteSweep) -> None:
    (plot,) = plots_of(shown(write_sweep, planned(tensor_parallel_size=4, pipeline_parallel_size=16)))
    svg = drawn(plot)
    assert all(f"stage {stage}<" in svg for stage in range(16))
    assert "bubble" in svg


def test_deferred_weight_gradients_have_spans_of_their_own(write_sweep: WriteSweep) -> None:
    plan = planned(tensor_parallel_size=4, pipeline_parallel_size=16, schedule="zero-bubble", global_batch_size=16)
    (plot,) = plots_of(shown(write_sweep, plan))
    assert "weight gradient" in {value["what"] for value in plot.spec["data"]["values"]}


def test_a_long_pipeline_shows_its_ends_in_two_windows_of_little_data(write_sweep: WriteSweep) -> None:
    """64 stages with 256 micro-batches have 32,768 passes."""
    model = FULL.model_copy(update={"num_layers": 128})
    value = experiment(model=model, world_size=64, pipeline_parallel_size=64, global_batch_size=256)
    plan = PIPED.model_copy(update={"experiment": value, "estimate": estimate(value), "infeasible_reason": None})
    found = shown(write_sweep, plan)
    fill, drain = plots_of(found)
    assert "The first and the last 4 of 64 stages" in fill.caption
    assert sum(len(json.dumps(plot.spec)) for plot in (fill, drain)) < 300_000
    assert "stage 63<" in drawn(drain)
    assert_shows_passes_of_every_stage(fill)
    assert_shows_passes_of_every_stage(drain)


def assert_shows_passes_of_every_stage(plot: Plot) -> None:
    """Both kinds of passes, in a window that is not empty."""
    low, high = plot.spec["encoding"]["x"]["scale"]["domain"]
    values = plot.spec["data"]["values"]
    assert low < high
    slack = 1e-5 * max(abs(low), abs(high))  # what is drawn is rounded
    assert all(low - slack <= value["from"] <= value["to"] <= high + slack for value in values)
    assert {value["what"] for value in values} >= {"forward", "backward"}
    assert {value["stage"] for value in values} == set(filter(str.strip, plot.spec["encoding"]["y"]["scale"]["domain"]))


def test_one_stage_has_nobody_to_wait_for(write_sweep: WriteSweep) -> None:
    assert "it has no pipeline" in shown(write_sweep, planned(tensor_parallel_size=8)).finding


def test_a_sweep_at_full_size_shows_the_plan_that_was_measured_to_be_the_best(write_sweep: WriteSweep) -> None:
    other = trial("other", model=FULL, world_size=64, tensor_parallel_size=2, pipeline_parallel_size=16)
    sweep = write_sweep((PIPED, other), {"piped": performance(1.0, 64)}, plan=(PIPED, other), mode="cluster")
    found = shown_of(section, sweep)
    assert "`tp4-pp16-dp1-mb1-gb8`, of the highest measured rate per device" in found.finding


def test_the_trainer_is_the_one_that_was_asked_for() -> None:
    assert PIPED.experiment is not None
    ours, megatron = (
        predicted_step(PIPED.experiment, IMPLEMENTATIONS[name]).total_seconds for name in ("trisweep", "megatron-lm")
    )
    assert ours != megatron


def test_where_no_plan_fits_there_is_no_section(write_sweep: WriteSweep) -> None:
    lacking = trial("lacks", model=FULL, world_size=64, micro_batch_size=4, global_batch_size=256)
    assert section(subject_of(write_sweep((), plan=(lacking,)))) is None
