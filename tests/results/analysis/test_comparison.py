"""Two sweeps beside each other. Every measured number is MADE UP for the test."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.errors import UsageError
from conf.types.schema import Value
from conf.types.sweep_spec import Objective
from results.analysis.comparison import Side, compare_sweeps, differences, why_incomparable
from results.render.section import Paragraph, Section
from results.report.comparison_page import comparison_sections, finding, sides_of, speed_finding, write_comparison
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, Trial
from tests.conftest import BuildRecord
from tests.messages import refused
from tests.results.conftest import FULL, WriteSweep, finish, performance, trial
from tests.results.report.sections.conftest import drawn, plots_of, rows_of, text_of
from train_core.trial.measurement import Outcome

BASE, TWO, THREE = trial("base"), trial("two", world_size=2), trial("three", world_size=2, tensor_parallel_size=2)


def side(write_sweep: WriteSweep, name: str, *trials: Trial, **rates: Any) -> Side:
    sweep = write_sweep(trials or (BASE, TWO, THREE), rates, name=name)
    return Side(name, sweep, sweep.read())


@pytest.fixture
def both(write_sweep: WriteSweep) -> tuple[Side, Side]:
    """One point is twice as fast, one half as fast, and one was measured on each side alone."""
    before = side(write_sweep, "before", base=performance(100.0), two=performance(200.0, 2))
    after = side(write_sweep, "after", base=performance(200.0), two=performance(100.0, 2), three=performance(1.0, 2))
    return before, after


def section_called(name: str, sections: list[Section]) -> Section:
    (found,) = (section for section in sections if section.name == name)
    return found


def test_points_are_paired_by_their_layout_and_the_ratio_is_of_tokens_a_second(both: tuple[Side, Side]) -> None:
    comparison = compare_sweeps(*both)
    assert {point.label: point.ratio for point in comparison.points} == {
        "tp1-pp1-dp1-mb1-gb8": 2.0,
        "tp1-pp1-dp2-mb1-gb8": 0.5,
    }
    assert comparison.mean_ratio == pytest.approx(1.0)
    assert comparison.only_after == ("tp2-pp1-dp1-mb1-gb8",)


@pytest.mark.parametrize(("rate", "kind"), [(81.0, "linear"), (5.0, "log")])
def test_ratios_lie_on_an_axis_that_has_labels_where_they_are(write_sweep: WriteSweep, rate: float, kind: str) -> None:
    sides = [side(write_sweep, name, base=performance(each)) for name, each in (("before", 100.0), ("after", rate))]
    (plot,) = plots_of(section_called("points", comparison_sections(*sides)))
    scale = plot.spec["layer"][1]["encoding"]["x"]["scale"]
    assert scale.get("type", "linear") == kind
    assert scale.get("zero", False) is False


def test_a_ratio_has_the_spread_of_both_measurements_steps(both: tuple[Side, Side]) -> None:
    """Steps vary from 0.95 to 1.05 of their median on both sides."""
    point = compare_sweeps(*both).points[0]
    assert point.ratio_bounds == pytest.approx((2 * 0.95 / 1.05, 2 * 1.05 / 0.95))
    assert point.is_clearly_other_speed


def test_a_difference_inside_the_spread_is_none(write_sweep: WriteSweep) -> None:
    before = side(write_sweep, "before", base=performance(100.0))
    after = side(write_sweep, "after", base=performance(105.0))
    (point,) = compare_sweeps(before, after).points
    assert not point.is_clearly_other_speed
    found = section_called("points", comparison_sections(before, after))
    assert rows_of(found, "compared-points")[0]["clearly"] == "no difference"


def test_another_model_is_not_compared_and_the_reason_is_said(write_sweep: WriteSweep) -> None:
    other = trial("base", model=FULL)
    before = side(write_sweep, "before", base=performance(100.0))
    after = side(write_sweep, "after", other, base=performance(100.0))
    comparison = compare_sweeps(before, after)
    assert comparison.comparable == []
    assert speed_finding(comparison) == (
        "Nothing of the two sweeps can be compared: model: made-up-proxy and made-up-175b."
    )
    found = section_called("points", comparison_sections(before, after))
    assert rows_of(found, "incomparable-points")[0]["not comparable because"] == "model: made-up-proxy and made-up-175b"


@pytest.mark.parametrize(("changed", "said"), [({"dtype": "bf16"}, "precision: fp32 and bf16"), ({}, "")])
def test_what_must_be_equal_is_named_where_it_is_not(
    write_sweep: WriteSweep, changed: dict[str, Any], said: str
) -> None:
    before = side(write_sweep, "before", base=performance(100.0))
    after = side(write_sweep, "after", trial("base", **changed), base=performance(100.0))
    assert why_incomparable(before.results[0], after.results[0]) == said


def test_what_differs_is_listed_and_what_is_the_same_is_not(both: tuple[Side, Side]) -> None:
    assert differences(*(each.results for each in both)) == []
    found = section_called("circumstances", comparison_sections(*both))
    assert found.finding == "Cluster, machine, software and code are the same."


def test_each_has_its_winner_and_layouts_of_one_side_alone_are_named(both: tuple[Side, Side]) -> None:
    sections = comparison_sections(*both)
    assert "different winners" not in section_called("winners", sections).finding
    points = section_called("points", sections)
    assert "Only B measured: `tp2-pp1-dp1-mb1-gb8`." in text_of(points)
    (plot,) = plots_of(points)
    assert "tokens a second, B over A" in drawn(plot)


def test_the_page_holds_all_of_it_and_stands_where_it_was_asked_for(both: tuple[Side, Side], tmp_path: Path) -> None:
    html, markdown = write_comparison(*both, tmp_path / "out")
    assert html == tmp_path / "out" / "compared-with-before.html"
    assert "How does after (B) compare with before (A)?" in html.read_text()
    assert "| tp1-pp1-dp1-mb1-gb8 |" in markdown.read_text()


def test_a_sweep_that_measured_nothing_leaves_a_page_that_says_so(write_sweep: WriteSweep) -> None:
    before = side(write_sweep, "before", base=performance(100.0))
    after = side(write_sweep, "after", base=(Outcome.FAILED, "made up"))
    sections = comparison_sections(before, after)
    assert "they measured no point in common" in section_called("points", sections).finding
    assert section_called("winners", sections).finding == "One of the sweeps has measured nothing yet."


def seeking(each: Side, *objectives: Objective) -> Side:
    record = each.sweep.record.model_copy(update={"objective": objectives})
    return replace(each, sweep=each.sweep._replace(record=record))


def with_losses(write_sweep: WriteSweep, name: str, **losses: float) -> Side:
    """The fastest is the last by loss, as the order of its losses is that of its rates turned round."""
    trials = [trial(each, micro_batch_size=2**place) for place, each in enumerate(losses)]
    rates = {
        each: performance(100.0 * loss if loss > 0 else 100.0, final_loss=loss, losses=(5.0, loss))
        for each, loss in losses.items()
    }
    return seeking(side(write_sweep, name, *trials, **rates), "loss")


def test_sweeps_for_a_loss_are_compared_by_it(write_sweep: WriteSweep) -> None:
    before = with_losses(write_sweep, "before", one=4.0, two=3.0, three=2.0, four=math.nan)
    after = with_losses(write_sweep, "after", one=3.5, two=3.0, three=2.5, four=1.0)
    said = "Of 4 points that both measured, B is by loss better in 2, worse in 1, equal in 1; each ran once"
    assert finding(before, after).startswith(said)
    sections = comparison_sections(before, after)
    rows = rows_of(section_called("sought", sections), "sought-pairs")
    assert [(row["point"], row["loss A"], row["loss B"], row["B is"]) for row in rows[:2]] == [
        ("tp1-pp1-dp1-mb4-gb8", "2.000", "2.500", "worse"),
        ("tp1-pp1-dp1-mb2-gb8", "3.000", "3.000", "equal"),
    ]
    winners = section_called("winners", sections)
    assert winners.finding == "The best by loss is `tp1-pp1-dp1-mb4-gb8` in A and `tp1-pp1-dp1-mb8-gb8` in B."
    assert [row["value"] for row in rows_of(winners, "winners")] == ["2.000", "1.000"]
    assert section_called("points", sections).title == "Their speed"


def test_a_sweep_of_which_every_training_diverged_has_measured_and_has_no_best(write_sweep: WriteSweep) -> None:
    before = with_losses(write_sweep, "before", one=4.0, two=3.0)
    after = with_losses(write_sweep, "after", one=math.nan, two=math.nan)
    winners = section_called("winners", comparison_sections(before, after))
    assert winners.finding == "B has no best point: all 2 points diverged."
    assert [row["best"] for row in rows_of(winners, "winners")] == ["tp1-pp1-dp1-mb2-gb8", "none"]


def test_sweeps_that_seek_different_things_have_no_common_winner(write_sweep: WriteSweep) -> None:
    before = with_losses(write_sweep, "before", one=4.0, two=3.0)
    after = seeking(with_losses(write_sweep, "after", one=3.5, two=3.0), "throughput")
    said = "A seeks loss and B model TFLOPS per device, so that neither their winners nor their values can be compared."
    assert finding(before, after).startswith(f"{said} B trains")
    sections = comparison_sections(before, after)
    assert [each.name for each in sections] == ["points", "winners", "circumstances"]
    winners = section_called("winners", sections)
    assert winners.finding == said
    assert [row["best"] for row in rows_of(winners, "winners")] == ["tp1-pp1-dp1-mb2-gb8", "tp1-pp1-dp1-mb1-gb8"]


def test_points_are_compared_over_the_seeds_that_both_measured(tmp_path: Path, build_record: BuildRecord) -> None:
    """The seed that only B has is the best of all; those that both have are equal."""
    sides = []
    for name, losses in (("before", (4.0, 5.0)), ("after", (4.0, 5.0, 1.0))):
        seeds = range(1, len(losses) + 1)
        points: list[dict[str, Value]] = [{"training.learning_rate": 0.1, "training.seed": seed} for seed in seeds]
        record = build_record(points, []).model_copy(update={"objective": ("loss",)})
        folder = SweepFolder(tmp_path / name)
        folder.write_record(record)
        for each, loss in zip(record.trials, losses, strict=True):
            finish(folder, each, performance(100.0, losses=(loss,), final_loss=loss))
        sides.append(Side(name, Sweep(folder, record), Sweep(folder, record).read()))
    assert finding(*sides).startswith("Of 1 point that both measured, B is by loss equal in 1; the 95 % intervals")
    found = section_called("sought", comparison_sections(*sides))
    assert found.blocks[-1] == Paragraph(
        "95 %: the interval of the loss; clearly: the intervals of both do not overlap. Of a point, the"
        " seeds count that both measured.",
        is_note=True,
    )


def test_the_winner_of_a_sweep_for_the_rate_has_the_rivals_of_its_own_report(write_sweep: WriteSweep) -> None:
    trials = (BASE, trial("other", micro_batch_size=2))
    before = side(write_sweep, "before", *trials, base=performance(100.0), other=performance(101.0))
    after = with_losses(write_sweep, "after", one=3.5, two=3.0)
    winners = section_called("winners", comparison_sections(before, after))
    assert [row["may be as good"] for row in rows_of(winners, "winners")] == ["1", "0"]


def test_one_point_has_no_geometric_mean(write_sweep: WriteSweep) -> None:
    before = side(write_sweep, "before", base=performance(100.0))
    after = side(write_sweep, "after", base=performance(200.0))
    assert finding(before, after) == (
        "B trains 2.00 times as many tokens a second as A at the only point that both measured; the difference is"
        " larger than the spread of the timed steps."
    )


def test_of_sweeps_of_another_program_it_is_said_what_was_not_compared(
    tmp_path: Path, build_record: BuildRecord
) -> None:
    sides = []
    for name in ("before", "after"):
        record = build_record([{"training.learning_rate": 0.1}], ["trainer=command", "trainer.command=[fit.py]"])
        folder = SweepFolder(tmp_path / name)
        folder.write_record(record)
        finish(folder, record.trials[0], performance(100.0))
        sides.append(Side(name, Sweep(folder, record), Sweep(folder, record).read()))
    found = section_called("circumstances", comparison_sections(*sides))
    assert found.finding == (
        "Cluster, machine and the software and code of Trisweep are the same. The code and the software of the program"
        " that they ran were not compared."
    )


def test_the_same_sweep_twice_is_refused(write_sweep: WriteSweep) -> None:
    one = side(write_sweep, "one", base=performance(100.0))
    with refused(UsageError):
        sides_of([(one.sweep, one.results), (one.sweep, one.results)])


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (("one", "two"), ("one", "two")),
        (("old/one", "new/one"), ("old/one", "new/one")),
        (("old/runs/one", "new/runs/one"), ("old/runs/one", "new/runs/one")),
        (("a/old/runs/one", "a/new/runs/one"), ("old/runs/one", "new/runs/one")),
    ],
)
def test_two_sweeps_are_called_by_as_much_of_their_paths_as_tells_them_apart(
    write_sweep: WriteSweep, tmp_path: Path, folders: tuple[str, str], names: tuple[str, str]
) -> None:
    sweep = write_sweep((BASE,))
    first, second = (sweep._replace(folder=SweepFolder(tmp_path / folder)) for folder in folders)
    assert tuple(each.name for each in sides_of([(first, []), (second, [])])) == names


def test_a_point_with_two_runs_is_one_point_by_the_middle_of_them(write_sweep: WriteSweep) -> None:
    again = BASE.model_copy(update={"trial_id": "base-2"})
    rates = {"base": performance(100.0), "base-2": performance(400.0)}
    before, after = side(write_sweep, "before", BASE, again, **rates), side(write_sweep, "after", BASE, again, **rates)
    comparison = compare_sweeps(before, after)
    assert [(point.label, point.ratio) for point in comparison.points] == [("tp1-pp1-dp1-mb1-gb8", 1.0)]
    alone = [each.performance.tokens_per_second for each in before.results if each.performance]
    assert comparison.points[0].performances[0].tokens_per_second == pytest.approx(math.sqrt(math.prod(alone)))


def with_rate(learning_rate: float) -> Trial:
    """The point of a sweep over learning rates."""
    made = trial(f"lr-{learning_rate}")
    assert made.experiment is not None
    training = made.experiment.training.model_copy(update={"learning_rate": learning_rate})
    experiment = made.experiment.model_copy(update={"training": training})
    return made.model_copy(update={"point": {"training.learning_rate": learning_rate}, "experiment": experiment})


def test_sweeps_over_another_key_are_paired_by_it(write_sweep: WriteSweep) -> None:
    """One of them varies the layout too, and so calls the same points otherwise by itself."""
    slow, fast = {"lr-0.001": performance(100.0)}, {"lr-0.002": performance(200.0)}
    before = side(write_sweep, "before", with_rate(0.001), with_rate(0.002), **slow, **fast)
    after = side(write_sweep, "after", with_rate(0.002), with_rate(0.001), TWO, **slow, **fast)
    points, layout = compare_sweeps(before, after).points, "tp1-pp1-dp1-mb1-gb8"
    assert [(point.label, point.ratio) for point in points] == [(f"{layout} lr=2e-3", 1.0), (f"{layout} lr=1e-3", 1.0)]
