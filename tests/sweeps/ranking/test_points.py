"""Points ranked by what a sweep seeks, with seeds as runs of one point."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from conf.types.schema import Value
from conf.types.sweep_spec import Objective
from results.analysis.findings.objective import aside_sentence
from results.analysis.findings.verdict import verdict
from results.mlflow.sweep_content import sweep_runs
from results.tables.sweep_tables import ranking_table
from results.tables.trial_rows import repeat_columns
from sweeps.ranking.disturbed import OTHER_MODEL
from sweeps.ranking.equal_training import trained_otherwise
from sweeps.ranking.points import best_reading, places, sought_points
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, SweepRecord
from tests.conftest import BuildRecord
from tests.results.conftest import CREATED, ENVIRONMENT, finish, performance
from tests.steps import STEP
from train_core.trial.measurement import Performance

LR, SEED = "training.learning_rate", "training.seed"


@pytest.fixture
def sweep(tmp_path: Path, build_record: BuildRecord) -> Sweep:
    """Two learning rates of two seeds each, and one that diverged. The slowest has the best loss."""
    points: list[dict[str, Value]] = [{LR: lr, SEED: seed} for lr in (1e-3, 1e-2) for seed in (1, 2)]
    record = build_record([*points, {LR: 0.5, SEED: 1}], []).model_copy(update={"objective": ("loss",)})
    folder = SweepFolder(tmp_path / "lr-local")
    folder.write_record(record)
    losses = (5.0, 5.2, 4.0, 4.2, math.nan)
    for trial, loss, rate in zip(record.trials, losses, (200.0, 200.0, 100.0, 100.0, 300.0), strict=True):
        finish(folder, trial, performance(rate, losses=(loss,), final_loss=loss))
    return Sweep.stored_in(folder)


def test_the_best_is_the_lowest_mean_loss_over_the_seeds_and_what_diverged_comes_last(sweep: Sweep) -> None:
    points = sought_points(sweep.record, sweep.read())
    assert [point.name for point in points] == ["lr=0.01", "lr=1e-3", "lr=0.5"]
    assert [len(point.runs) for point in points] == [2, 2, 1]
    assert points[0].values[0] == pytest.approx(4.1)
    # Two runs are half of their distance from their mean; Student's t of two degrees of freedom is 4.303.
    deviation = math.sqrt((math.log(4.2 / 4.0) ** 2 / 2 + math.log(5.2 / 5.0) ** 2 / 2) / 2)
    assert points[0].interval == pytest.approx(around(4.1, 4.303 * deviation / math.sqrt(2)))


def test_a_point_that_diverged_says_nothing_of_the_others_spread(sweep: Sweep) -> None:
    expected = sought_points(sweep.record, sweep.read())[0].interval
    for trial, last in zip(sweep.record.trials[2:4], (1e20, 3e23), strict=True):  # those of lr=0.01
        finish(sweep.folder, trial, performance(100.0, losses=(5.0, last), final_loss=last))
    points = sought_points(sweep.record, sweep.read())
    assert [(point.name, point.diverged) for point in points] == [
        ("lr=1e-3", False),
        ("lr=0.01", True),
        ("lr=0.5", True),
    ]
    assert points[1].interval is None
    assert points[0].interval is not None
    assert expected is not None
    # One degree of freedom is left of two, so that the interval is wider, and by no more than that.
    assert math.log(points[0].interval[1] / 5.1) < 5 * math.log(expected[1] / 4.1)
    said = verdict(sweep.record, sweep.read())
    assert said.headline.endswith("; 2 diverged.")


def test_a_step_that_was_skipped_does_not_spoil_the_loss_of_a_training(sweep: Sweep) -> None:
    for trial in sweep.record.trials[2:4]:  # those of lr=0.01
        losses = (*[5.0] * 18, math.inf, 3.0)  # of which the last tenth counts
        finish(sweep.folder, trial, performance(100.0, losses=losses, final_loss=3.0))
    best, *_ = sought_points(sweep.record, sweep.read())
    assert (best.name, best.values[0], best.diverged) == ("lr=0.01", 3.0, False)


@pytest.mark.parametrize(
    ("losses", "objective", "diverged"),
    [
        ([0.2] * 19 + [0.31], ("loss",), False),
        ([0.1] + [0.2] * 19, ("loss",), False),
        ([0.2] * 18 + [0.31] * 2, ("loss",), True),
        ([0.2] * 18 + [0.31] * 2, ("step_time",), False),
    ],
    ids=["a noisy last step", "a low first step", "a last tenth", "sought by time"],
)
def test_a_training_has_not_diverged_for_one_noisy_step(
    sweep: Sweep, losses: list[float], objective: tuple[Objective, ...], diverged: bool
) -> None:
    for trial in sweep.record.trials[2:4]:  # those of lr=0.01
        finish(sweep.folder, trial, performance(100.0, losses=tuple(losses), final_loss=losses[-1]))
    record = sweep.record.model_copy(update={"objective": objective})
    points = sought_points(record, sweep.read())
    assert {point.name: point.diverged for point in points}["lr=0.01"] is diverged


def test_a_point_that_diverged_has_no_place_and_is_counted_so_in_the_sentence(sweep: Sweep) -> None:
    """Its loss is the lowest of all, yet far above where it began."""
    for trial in sweep.record.trials[2:4]:  # those of lr=0.01
        finish(sweep.folder, trial, performance(100.0, losses=(0.2, 0.4), final_loss=0.4))
    points = sought_points(sweep.record, sweep.read())
    assert [point.name for point in points] == ["lr=1e-3", "lr=0.01", "lr=0.5"]
    assert places(points) == ["1", "", ""]
    best = best_reading(sweep.record, sweep.read())
    assert best is not None
    assert best.label.startswith("lr=1e-3")
    headline = verdict(sweep.record, sweep.read()).headline
    assert headline.endswith("; 2 diverged.")


@pytest.mark.parametrize(
    ("losses", "objective", "expected"),
    [
        ((4.0, 4.2, 4.1, 4.3, 4.0), ("loss",), ["1=", "1=", "1="]),
        ((4.0, 4.01, 5.0, 5.01, 6.0), ("loss",), ["1", "2", "3"]),
        ((6.0, 6.01, 5.0, 5.01, 5.0), ("loss",), ["1=", "1=", "3"]),
        ((4.0, 4.2, 4.1, 4.3, 4.0), ("loss", "step_time"), ["1", "2", "3"]),
    ],
    ids=["none is surely better", "each is", "two share the first", "several objectives"],
)
def test_places_follow_the_intervals_as_those_of_rates_do(
    sweep: Sweep, losses: tuple[float, ...], objective: tuple[Objective, ...], expected: list[str]
) -> None:
    record = sweep.record.model_copy(update={"objective": objective})
    points = sought_points(record, measured(sweep, *losses))
    assert places(points) == expected
    table = ranking_table(record, sweep.read())
    assert [row[0].text for row in table.rows] == expected


def test_the_step_of_a_point_is_its_middle_run_s_in_tables_and_in_mlflow(
    tmp_path: Path, build_record: BuildRecord
) -> None:
    record = build_record([{SEED: seed} for seed in (1, 2, 3)], []).model_copy(update={"objective": ("loss",)})
    folder = SweepFolder(tmp_path / "seeds")
    for trial, rate in zip(record.trials, (100.0, 400.0, 200.0), strict=True):
        finish(folder, trial, performance(rate))
    readings = Sweep(folder, record).read()
    (row,) = ranking_table(record, readings).rows
    assert row[-1].text == "1.28"  # 256 tokens at 200 a second
    parent, *_ = sweep_runs(record, readings)
    assert {metric.key: metric.value for metric in parent.metrics}["best/step_s"] == pytest.approx(1.28)


def test_the_run_of_a_sweep_in_mlflow_has_the_best_loss(sweep: Sweep) -> None:
    readings = measured(sweep, 4.0, 3.0, 5.0, 5.2, 6.0)
    by_loss, by_rate = (
        {metric.key: metric.value for metric in next(sweep_runs(record, readings)).metrics}
        for record in (sweep.record.model_copy(update={"objective": each}) for each in (("loss",), ("throughput",)))
    )
    assert by_loss["best/loss"] == pytest.approx(3.5)
    assert "best/loss" not in by_rate


def test_experiments_that_their_seeds_alone_tell_apart_are_two_points(
    tmp_path: Path, build_record: BuildRecord
) -> None:
    decays = [(seed, 0.1) for seed in (1234, 1235)] + [(seed, 0.3) for seed in (2000, 2001)]
    each = [build_record([{SEED: seed}], [f"training.weight_decay={decay}"]).trials[0] for seed, decay in decays]
    record = build_record([{}], []).model_copy(update={"objective": ("loss",), "trials": tuple(each)})
    folder = SweepFolder(tmp_path / "decays")
    for trial, loss in zip(record.trials, (5.0, 5.2, 4.0, 4.2), strict=True):
        finish(folder, trial, performance(100.0, losses=(loss,), final_loss=loss))
    points = sought_points(record, Sweep(folder, record).read())
    assert [(point.name, len(point.runs)) for point in points] == [("seed=2000", 2), ("seed=1234", 2)]


def test_best_and_verdict_follow_the_objective_and_not_the_rate(sweep: Sweep) -> None:
    readings = sweep.read()
    best = best_reading(sweep.record, readings)
    assert best is not None
    assert best.label.startswith("lr=0.01")
    said = verdict(sweep.record, readings)
    assert said.headline == "lr=0.01 reached the lowest loss, 4.100 (3.728 to 4.510), against 5.100; lr=0.5 diverged."


def test_the_answer_names_trials_that_ran_other_code_than_the_last_one(sweep: Sweep) -> None:
    for index, trial in enumerate(sweep.record.trials):
        environment = ENVIRONMENT.model_copy(update={"trainer_code": "new" if index == 3 else "old"})
        measured = performance(100.0, losses=(4.0,), final_loss=4.0)
        finish(sweep.folder, trial, measured, ended=CREATED + 60 + index % 4, environment=environment)
    readings = sweep.read()
    said = verdict(sweep.record, readings)
    (others,) = [detail for detail in said.details if "other code" in detail]
    assert others.startswith(f"4 of 5 trials ran other code of the trainer than {readings[3].title}, the last one,")
    again = replace(readings[3], trial=readings[0].trial)
    (others,) = [detail for detail in verdict(sweep.record, [*readings, again]).details if "other code" in detail]
    assert others.startswith("3 of 6 trials"), "one of the four was measured with the new code too"
    of_one_code = verdict(sweep.record, readings[:3])
    assert not any("other code" in detail for detail in of_one_code.details)


def test_of_several_objectives_the_front_comes_first(sweep: Sweep) -> None:
    both: tuple[Objective, ...] = ("loss", "throughput")
    record = sweep.record.model_copy(update={"objective": both})
    finite = [each for each in sweep.read() if not _diverged(each)]
    points = sought_points(record, finite)
    assert [(point.name, point.on_front) for point in points] == [("lr=0.01", True), ("lr=1e-3", True)]
    assert verdict(record, finite).headline.startswith("No other of 2 points beats these 2 in loss and")


@pytest.mark.parametrize(
    ("second", "is_known"), [(1.0, False), (1.1, True)], ids=["the same again", "as of a server that was timed"]
)
def test_a_figure_of_a_seed_that_ran_twice_says_what_is_chance_where_it_varies_by_itself(
    sweep: Sweep, second: float, is_known: bool
) -> None:
    record = sweep.record.model_copy(update={"objective": ("serve.seconds",)})
    first = sweep.read()[0]
    again = first.trial.model_copy(update={"trial_id": "again", "repeat": 1})
    runs = [replace(first, figures={"serve.seconds": 1.0})]
    runs.append(replace(first, trial=again, figures={"serve.seconds": second}))
    (point,) = sought_points(record, runs)
    assert (len(point.runs), point.interval is not None) == (2, is_known)


def test_a_seed_that_ran_twice_says_nothing_of_chance(sweep: Sweep) -> None:
    first = sweep.record.trials[0]
    again = first.model_copy(update={"trial_id": f"{first.trial_id}-r2", "repeat": 1})
    for trial, speed in ((first, 100.0), (again, 101.0)):
        finish(sweep.folder, trial, performance(speed, losses=(5.0,), final_loss=5.0))
    record = sweep.record.model_copy(update={"trials": (first, again)})
    (point,) = sought_points(record, Sweep(sweep.folder, record).read())
    assert (len(point.runs), point.interval) == (2, None)
    (rate,) = sought_points(record.model_copy(update={"objective": ("step_time",)}), Sweep(sweep.folder, record).read())
    assert rate.interval is not None


def test_a_seed_that_ran_twice_counts_once(sweep: Sweep) -> None:
    # A command with --remeasure that is interrupted leaves some seeds twice.
    first = sweep.record.trials[0]
    again = first.model_copy(update={"trial_id": f"{first.trial_id}-r2", "repeat": 1})
    finish(sweep.folder, again, performance(100.0, losses=(5.0,), final_loss=5.0))
    record = sweep.record.model_copy(update={"trials": (*sweep.record.trials, again)})
    (_, once, _) = sought_points(sweep.record, sweep.read())
    (_, twice, _) = sought_points(record, Sweep(sweep.folder, record).read())
    assert (len(once.runs), len(twice.runs)) == (2, 3)
    for one, other in ((once, twice), (once.of_seeds({1}), twice.of_seeds({1}))):
        assert one.values == pytest.approx(other.values)
        assert one.interval == pytest.approx(other.interval)


def test_the_loss_of_a_run_counts_though_its_times_were_disturbed(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    third, fourth = sweep.record.trials[2:4]  # both seeds of lr=0.01
    finish(sweep.folder, fourth, performance(10.0, losses=(4.2,), final_loss=4.2))
    monkeypatch.setattr("sweeps.ranking.points.disturbances", lambda _: {fourth.trial_id: "it was late"})
    for objective, runs, values in (
        (("loss", "step_time"), 2, (4.1, 2.56)),
        (("step_time", "loss"), 2, (2.56, 4.1)),
        (("step_time",), 1, (2.56,)),
    ):
        points = sought_points(sweep.record.model_copy(update={"objective": objective}), sweep.read())
        found = next(point for point in points if point.name == "lr=0.01")
        assert len(found.runs) == runs
        assert found.values == pytest.approx(values)
        assert found.middle.trial.trial_id == third.trial_id


def test_one_run_of_each_leaves_chance_unknown(sweep: Sweep) -> None:
    first = [each for each in sweep.read() if each.trial.point[SEED] == 1 and not _diverged(each)]
    (best, _) = sought_points(sweep.record, first)
    assert best.interval is None
    assert "how much is chance is not known" in verdict(sweep.record, first).advice


def test_a_hint_names_a_key_once_with_the_value_that_it_is_to_have(sweep: Sweep) -> None:
    first = [each for each in sweep.read() if each.trial.point[SEED] == 1 and not _diverged(each)]
    record = sweep.record.model_copy(update={"overrides": ("search.num_seeds=2", "model=tiny")})
    words = verdict(record, first, ["--config-dir", "my conf"]).advice
    assert "`trisweep sweep test model=tiny --config-dir 'my conf' search.num_seeds=3` would tell" in words


def test_a_hint_at_further_seeds_leaves_room_for_them(sweep: Sweep) -> None:
    """They count towards `sweep.max_trials`, so that the sweep would else end before the first of them."""
    first = [each for each in sweep.read() if each.trial.point[SEED] == 1 and not _diverged(each)]
    num_taken = sum(trial.selected for trial in sweep.record.trials)
    spec = sweep.record.spec.model_copy(update={"max_trials": num_taken})
    advice = verdict(sweep.record.model_copy(update={"spec": spec}), first).advice
    assert f"search.num_seeds=3 sweep.max_trials={3 * num_taken}` would tell" in advice


def test_a_hint_at_further_seeds_counts_no_stages_that_follow_the_points(sweep: Sweep) -> None:
    first = [each for each in sweep.read() if each.trial.point[SEED] == 1 and not _diverged(each)]
    later = sweep.record.trials[0].model_copy(update={"trial_id": "later", "stage": "eval"})
    spec = sweep.record.spec.model_copy(update={"max_trials": 1})
    both = sweep.record.model_copy(update={"spec": spec, "trials": (*sweep.record.trials, later)})
    advice = verdict(both, first).advice
    assert f"sweep.max_trials={3 * len(sweep.record.trials)}` would tell" in advice


def test_no_further_runs_are_advised_while_some_have_not_ended(sweep: Sweep) -> None:
    first = [each for each in sweep.read() if each.trial.point[SEED] == 1 and not _diverged(each)]
    waiting = replace(first[0], folder=sweep.folder.trial("another"))
    said = verdict(sweep.record, [*first, waiting])
    assert said.advice == "One run of each so far, so how much is chance is not known."
    assert said.details[-1] == "The sweep is not finished: 1 trial has not ended."


def around(value: float, half: float) -> tuple[float, float]:
    """The interval of a positive value by half its width in logarithms."""
    return value / math.exp(half), value * math.exp(half)


def measured(sweep: Sweep, *losses: float) -> list[TrialReading]:
    """The sweep with other losses: two of each learning rate, and one of the last."""
    for trial, loss in zip(sweep.record.trials, losses, strict=True):
        finish(sweep.folder, trial, performance(100.0, losses=(8.0, loss), final_loss=loss))
    return sweep.read()


def test_how_a_training_spreads_that_has_converged_says_nothing_of_one_that_has_not(sweep: Sweep) -> None:
    points = sought_points(sweep.record, measured(sweep, 6.4, 6.8, 0.001, 0.003, 0.0))
    assert [point.values[0] for point in points] == pytest.approx([0.0, 0.002, 6.6])
    alone = [around(value, 12.71 * math.log(ratio) / 2) for value, ratio in ((0.002, 3.0), (6.6, 6.8 / 6.4))]
    assert [point.interval for point in points] == [None, pytest.approx(alone[0]), pytest.approx(alone[1])]
    assert [point.may_equal(points[0]) for point in points[1:]] == [False, False]


def test_a_single_run_has_the_spread_of_points_of_like_value_and_none_where_no_such_point_ran_twice(
    sweep: Sweep,
) -> None:
    like = sought_points(sweep.record, measured(sweep, 6.4, 6.8, 0.001, 0.003, 7.0))[-1]
    assert like.interval == pytest.approx(around(7.0, 12.71 * math.log(6.8 / 6.4) / math.sqrt(2)))
    unlike = sought_points(sweep.record, measured(sweep, 6.4, 6.8, 0.001, 0.003, 0.5))[1]
    assert (unlike.values[0], unlike.interval) == (0.5, None)


def test_a_best_loss_that_ran_once_has_no_bounds_from_points_that_are_far_worse(sweep: Sweep) -> None:
    """Two seeds of a training that has not converged say nothing of one that has."""
    readings = measured(sweep, 0.64, 0.66, 0.65, 0.651, 0.0359)
    points = sought_points(sweep.record, readings)
    assert (points[0].values[0], points[0].interval) == (0.0359, None)
    assert places(points) == ["1?", "2=", "2="]
    said = verdict(sweep.record, readings)
    assert said.headline == "lr=0.5 reached the lowest loss, 0.03590, against 0.6500 to 0.6505 of the 2 others."
    assert said.advice.startswith("lr=0.5 ran once, as did every point of like value, so how much is chance is not")
    assert "search.num_seeds=3" in said.advice
    table = ranking_table(sweep.record, readings)
    assert [row[0].text for row in table.rows] == ["1?", "2=", "2="]
    assert table.rows[0][4].text == "-"


def test_places_of_single_runs_are_an_order_that_nobody_is_sure_of(sweep: Sweep) -> None:
    first = [each for each in measured(sweep, 4.0, 4.1, 4.0, 4.1, 5.0) if each.trial.point[SEED] == 1]
    assert places(sought_points(sweep.record, first)) == ["1?", "1?", "3?"]
    assert places(sought_points(sweep.record, first[:1])) == ["1"], "it has no rival"


def test_the_interval_of_what_is_positive_is_never_below_zero(sweep: Sweep) -> None:
    best, *_ = sought_points(sweep.record, measured(sweep, 0.01, 0.06, 0.02, 0.09, 0.03))
    assert best.interval is not None
    assert 0 < best.interval[0] < best.values[0] < best.interval[1]
    wide, *_ = sought_points(sweep.record, measured(sweep, 1e-30, 5.0, 1e-30, 5.0, 3.0))
    assert wide.interval is not None
    assert 0 < wide.interval[0] < math.inf
    assert wide.interval[1] < math.inf


def test_what_may_be_negative_has_an_interval_by_its_distances(sweep: Sweep) -> None:
    first, second = (
        replace(each, figures={"eval.score": score}) for each, score in zip(sweep.read()[:2], (-1.0, -3.0), strict=True)
    )
    (point,) = sought_points(sweep.record.model_copy(update={"objective": ("eval.score",)}), [first, second])
    assert point.interval == pytest.approx((-2 - 12.71, -2 + 12.71))


@pytest.mark.parametrize(
    ("losses", "headline", "which"),
    [
        ((0.0, 1.0, 0.0), "No clear winner: lr=1e-3 reached the lowest loss, 0, and so did 1 other.", "lr=0.5"),
        (
            (0.0, 0.0, 0.0),
            "No clear winner: lr=1e-3 reached the lowest loss, 0, and so did 2 others.",
            "lr=0.01, lr=0.5",
        ),
    ],
)
def test_a_tie_is_no_win(sweep: Sweep, losses: tuple[float, ...], headline: str, which: str) -> None:
    first, second, third = losses
    readings = [each for each in measured(sweep, first, 1.0, second, 1.0, third) if each.trial.point[SEED] == 1]
    said = verdict(sweep.record, readings)
    assert (said.headline, said.details) == (headline, (f"Reached the same: {which}.",))


OTHER_PROGRAM = ["trainer=command", "trainer.command=[fit.py]", "training.num_steps=20"]


def lengths(num_steps: int, every: int = 1, loss: float = 1.0) -> Performance:
    """What a program of one's own leaves that logs every so many steps, and ends after so many of 20."""
    recorded = range(every, num_steps + 1, every)
    unrecorded = tuple(number for number in range(1, 21) if number not in recorded)
    losses = (loss,) * len(recorded)
    return performance(100.0, losses=losses, unrecorded_steps=unrecorded, final_loss=loss)


def sought(tmp_path: Path, build_record: BuildRecord, *left: Performance) -> tuple[SweepRecord, list[TrialReading]]:
    """A sweep of a program of one's own, whose learning rates are 1, 2, ...; each left this."""
    record = build_record([{LR: float(rate)} for rate in range(1, len(left) + 1)], OTHER_PROGRAM)
    folder, record = SweepFolder(tmp_path / "own"), record.model_copy(update={"objective": ("loss",)})
    for each, performed in zip(record.trials, left, strict=True):
        finish(folder, each, performed)
    return record, Sweep(folder, record).read()


@pytest.mark.parametrize(
    ("left", "names", "aside"),
    [
        ([lengths(20), lengths(5, loss=0.5)], ["lr=1", "lr=2"], ["", "after 5 steps in place of 20"]),
        ([lengths(5), lengths(5, loss=0.5)], ["lr=2", "lr=1"], ["", ""]),
        ([lengths(20), lengths(18, every=3, loss=0.5)], ["lr=2", "lr=1"], ["", ""]),
        ([lengths(20), lengths(10, every=5, loss=0.5)], ["lr=1", "lr=2"], ["", "after 10 steps in place of 20"]),
    ],
)
def test_a_loss_after_a_shorter_training_has_no_place(
    tmp_path: Path, build_record: BuildRecord, left: list[Performance], names: list[str], aside: list[str]
) -> None:
    record, readings = sought(tmp_path, build_record, *left)
    points = sought_points(record, readings)
    assert ([point.name for point in points], [point.aside for point in points]) == (names, aside)
    said = verdict(record, readings)
    assert said.headline.startswith(f"{names[0]} reached the lowest loss")
    assert any("Without a place" in detail for detail in said.details) == any(aside)
    found = best_reading(record, readings)
    assert found is not None
    assert found.label == names[0]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ("training.num_steps=4", "after 4 steps in place of 20"),
        ("batch.global_batch_size=4", "after 1,280 tokens in place of 2,560"),
        ("data.held_out_fraction=0.25", "on other data"),
        ("model.vocab_size=512", "with model.vocab_size=512"),
        ("training.weight_decay=0.3", ""),
    ],
)
def test_a_trial_of_an_earlier_configuration_has_a_place_where_it_trained_on_as_much(
    tmp_path: Path, build_record: BuildRecord, changed: str, why: str
) -> None:
    common = ["model.seq_length=16", "batch.global_batch_size=8", "training.num_steps=20"]
    asked, kept = (build_record([{LR: lr}], [*common, *more]).trials[0] for lr, more in ((1.0, []), (2.0, [changed])))
    trials = (asked, kept.model_copy(update={"role": "kept"}))
    record = build_record([{}], []).model_copy(update={"objective": ("loss",), "trials": trials})
    folder = SweepFolder(tmp_path / "kept")
    for each, loss in zip(trials, (5.0, 4.0), strict=True):
        finish(folder, each, performance(100.0, losses=(loss,), final_loss=loss))
    points = sought_points(record, Sweep(folder, record).read())
    assert [point.reading.trial.role for point in points] == (["asked", "kept"] if why else ["kept", "asked"])
    assert [point.aside for point in points] == ["", why]


def test_mixtures_are_compared_by_the_loss_of_another_set_alone(tmp_path: Path, build_record: BuildRecord) -> None:
    mixture = "data.mixture={{web:{{path:a,weight:{}}},code:{{path:b,weight:1}}}}"
    trials = [build_record([{LR: lr}], ["data=text", mixture.format(lr)]).trials[0] for lr in (1, 2)]
    record = build_record([{}], []).model_copy(update={"trials": tuple(trials)})
    for each in trials:
        finish(SweepFolder(tmp_path / "mixed"), each, performance(100.0))
    runs = {each.name: [each] for each in Sweep(SweepFolder(tmp_path / "mixed"), record).read()}
    assert not trained_otherwise(runs, by_loss=False)
    assert list(trained_otherwise(runs, by_loss=True).values()) == ["on other data"]


def left_beside(tmp_path: Path, build_record: BuildRecord, sought: Objective, *changed: str) -> Sweep:
    """A sweep of a trial at 100 tokens a second, and one at 200 that an earlier command left with another setting."""
    common = ["model.seq_length=16", "batch.global_batch_size=8", "training.num_steps=20"]
    asked, kept = (build_record([{LR: lr}], [*common, *more]).trials[0] for lr, more in ((1.0, ()), (2.0, changed)))
    trials = (asked, kept.model_copy(update={"role": "kept"}))
    record = build_record([{}], []).model_copy(update={"objective": (sought,), "trials": trials})
    folder = SweepFolder(tmp_path / "kept")
    for each, rate in zip(trials, (100.0, 200.0), strict=True):
        finish(folder, each, performance(rate))
    return Sweep(folder, record)


@pytest.mark.parametrize(
    ("changed", "is_first"),
    [("model.num_layers=1", False), ("batch.micro_batch_size=2", True), ("model.name=another-name", True)],
)
@pytest.mark.parametrize("objective", ["throughput", "step_time"])
def test_a_rate_and_a_time_of_another_model_have_no_place_beside_those_of_the_question(
    tmp_path: Path, build_record: BuildRecord, objective: Objective, changed: str, is_first: bool
) -> None:
    record, readings = (sweep := left_beside(tmp_path, build_record, objective, changed)).record, sweep.read()
    _, left = (each.label for each in readings)
    best, said, why = best_reading(record, readings), verdict(record, readings), f"{left} ({OTHER_MODEL})"
    assert best is not None
    assert (best.trial.role == "kept") == is_first
    assert any(why in each for each in said.details) != is_first
    assert (left in said.headline) == is_first
    places = [row["place"] for row in repeat_columns(record, readings)]
    assert places == ((["2", "1"] if objective == "throughput" else ["2?", "1?"]) if is_first else ["1", None])


@pytest.mark.parametrize(("changed", "is_named"), [("model.num_layers=1", False), ("batch.micro_batch_size=2", True)])
def test_what_another_model_measured_with_other_code_is_not_measured_again(
    tmp_path: Path, build_record: BuildRecord, changed: str, is_named: bool
) -> None:
    """The command that the answer would advise measures the points of the present model alone."""
    sweep = left_beside(tmp_path, build_record, "throughput", changed)
    for each, code in zip(sweep.record.trials, ("new", "old"), strict=True):
        finish(
            sweep.folder, each, performance(100.0), environment=ENVIRONMENT.model_copy(update={"trainer_code": code})
        )
    details = verdict(sweep.record, sweep.read()).details
    assert any("ran other code" in detail for detail in details) == is_named


def test_points_without_a_place_for_the_same_reason_are_named_together() -> None:
    said = aside_sentence({"one": "on other data", "two": "", "three": "after 4 steps", "four": "on other data"})
    assert said == "Without a place among the others: one, four (on other data); three (after 4 steps)."
    assert aside_sentence({"two": ""}) == ""


@pytest.mark.parametrize("objective", ["throughput", "loss"])
def test_where_another_model_alone_was_measured_there_is_no_answer_yet(
    tmp_path: Path, build_record: BuildRecord, objective: Objective
) -> None:
    sweep = left_beside(tmp_path, build_record, objective, "model.num_layers=1")
    sweep.folder.trial(sweep.record.trials[0].trial_id).measurement.unlink()
    said = verdict(sweep.record, sweep.read())
    assert said.headline.startswith("Nothing has been measured yet: 1 trial has not ended.")


@pytest.mark.parametrize(
    ("changed", "why"), [("training.num_steps=40", "after 40 steps in place of 20"), ("training.weight_decay=0.3", "")]
)
def test_a_figure_that_followed_a_training_of_another_length_has_no_place_unless_the_sweep_varies_that(
    tmp_path: Path, build_record: BuildRecord, changed: str, why: str
) -> None:
    sweep = left_beside(tmp_path, build_record, "max:score.skill", changed)
    readings = [
        replace(each, figures={"score.skill": skill}) for each, skill in zip(sweep.read(), (0.1, 0.2), strict=True)
    ]
    points = sought_points(sweep.record, readings)
    assert [point.reading.trial.role for point in points] == (["asked", "kept"] if why else ["kept", "asked"])
    assert [point.aside for point in points] == ["", why]
    asked = [replace(each, trial=each.trial.model_copy(update={"role": "asked"})) for each in readings]
    assert [point.aside for point in sought_points(sweep.record, asked)] == ["", ""]


@pytest.mark.parametrize(
    ("program", "evaluated"),
    [([], "training.evaluate_every=5"), (OTHER_PROGRAM, r"trainer.log.patterns.v='val (?P<held_out_loss>\S+)'")],
)
def test_a_held_out_loss_has_no_place_among_training_losses(
    tmp_path: Path, build_record: BuildRecord, program: list[str], evaluated: str
) -> None:
    common = ["data.held_out_fraction=0.1", "training.num_steps=20", *program]
    asked, kept = (build_record([{LR: lr}], [*common, *more]).trials[0] for lr, more in ((1.0, [evaluated]), (2.0, [])))
    trials = (asked, kept.model_copy(update={"role": "kept"}))
    record = build_record([{}], []).model_copy(update={"objective": ("loss",), "trials": trials})
    folder = SweepFolder(tmp_path / "kept")
    for each in trials:
        finish(folder, each, lengths(20))
    told = STEP.model_copy(update={"step": 20, "num_steps": 20, "held_out_loss": 5.0})
    folder.trial(asked.trial_id).append_metrics(told)
    points = sought_points(record, Sweep(folder, record).read())
    assert [(point.values, point.aside) for point in points] == [((5.0,), ""), ((1.0,), "judged by its training loss")]


def test_a_program_that_prints_no_loss_is_not_said_to_have_diverged(tmp_path: Path, build_record: BuildRecord) -> None:
    record, readings = sought(tmp_path, build_record, lengths(20), lengths(20, loss=math.nan))
    headline = verdict(record, readings).headline
    assert headline.endswith("; 1 printed no loss that is a number and that trainer.log.patterns matches.")
    none = verdict(record, readings[1:]).headline
    assert none.startswith("No loss that is a number was printed: nothing matches trainer.log.patterns, or")


@pytest.mark.parametrize(
    ("command", "second", "said"),
    [
        ("train.py", 4.0, "All runs of a point came to the same.* is not told {training.seed}"),
        ("train.py", 4.1, "The interval is of 95 %"),
        ("train.py", None, "One run of each.* is not told {training.seed}"),
        (
            "train.py {training.seed}",
            4.0,
            "All runs of a point came to the same.*Does the program make use of {training.s",
        ),
        ("train.py {training.seed}", 4.1, "The interval is of 95 %"),
        ("train.py {training.seed}", None, r"One run of each.* search\.num_seeds=3` would tell"),
    ],
)
def test_runs_of_a_program_that_is_not_told_the_seed_say_nothing_where_they_are_equal(
    tmp_path: Path, build_record: BuildRecord, command: str, second: float | None, said: str
) -> None:
    points: list[dict[str, Value]] = [{LR: lr, SEED: seed} for lr in (1.0, 2.0) for seed in (1, 2)]
    record = build_record(points, [*OTHER_PROGRAM, f"trainer.command='{command}'"])
    folder, record = SweepFolder(tmp_path / "own"), record.model_copy(update={"objective": ("loss",)})
    for each, loss in zip(record.trials, (4.0, second, 5.0, second and second + 1), strict=True):
        if loss is not None:
            finish(folder, each, performance(100.0, losses=(loss,), final_loss=loss))
    readings = [each for each in Sweep(folder, record).read() if each.measurement]
    assert re.search(said, verdict(record, readings).advice)


def _diverged(reading: TrialReading) -> bool:
    return reading.performance is None or not math.isfinite(reading.performance.final_loss)


def test_a_sought_figure_that_no_stage_measured_is_told_from_those_that_they_did(sweep: Sweep) -> None:
    """The figures of a file are known only afterwards, so that nobody could refuse the misspelt one before."""
    record = sweep.record.model_copy(update={"objective": ("score.rmes",)})
    readings = [replace(each, figures={"score.rmse": 1.0, "score.bias": 0.1}) for each in sweep.read()]
    said = verdict(record, readings)
    assert said.headline.startswith("No trial has measured score.rmes yet")
    assert said.advice == "What was measured is score.rmse, score.bias. Did you mean score.rmse?"
    named = [row[1].text.removesuffix(" *") for row in ranking_table(record, readings).rows]
    assert named == [each.title for each in readings]


def test_of_a_figure_that_is_to_be_large_the_largest_is_the_best_however_little_is_known(sweep: Sweep) -> None:
    """Accuracies of one run each: an order, the largest first, and no certain place."""
    runs = [each for each in sweep.read() if each.trial.point[SEED] == 1]
    scored = [replace(each, figures={"eval.acc": score}) for each, score in zip(runs, (0.61, 0.72, 0.7), strict=True)]
    record = sweep.record.model_copy(update={"objective": ("max:eval.acc",)})
    points = sought_points(record, scored)
    assert [(point.name, point.values[0]) for point in points] == [
        ("lr=0.01", 0.72),
        ("lr=0.5", 0.7),
        ("lr=1e-3", 0.61),
    ]
    assert places(points) == ["1?", "2?", "3?"]


def test_the_luckiest_of_several_seeds_is_not_the_result_of_a_point(tmp_path: Path, build_record: BuildRecord) -> None:
    record = build_record([{SEED: seed} for seed in (1, 2, 3)], []).model_copy(update={"objective": ("loss",)})
    folder = SweepFolder(tmp_path / "seeds")
    for each, loss in zip(record.trials, (23.2, 23.64, 23.55), strict=True):
        finish(folder, each, performance(100.0, losses=(30.0, loss), final_loss=loss))
    (point,) = sought_points(record, Sweep(folder, record).read())
    assert point.values[0] == pytest.approx(23.463, abs=1e-3)
    assert point.interval is not None
    assert point.interval[0] < 23.2
    assert point.interval[1] > 23.64
