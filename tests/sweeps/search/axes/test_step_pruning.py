"""Which running trials end early: the rules of Optuna's pruners, over tokens, from what is on disk."""

from __future__ import annotations

import math

import numpy as np
import optuna
import pytest

from benchmarks.replay.run import NOWHERE
from conf.types.schema import Value
from sweeps.points.objectives import LAST_PART
from sweeps.search.axes.seen_points import with_seed
from sweeps.search.axes.step_pruning import DIVERGED, Curve, Pruner, prunings, why_below_median, why_not_promoted
from sweeps.search.searcher import Proposal
from tests.sweeps.search.loss_sweep import LOSS, CurveReading, LossSweep

NUM_STEPS, WINDOW = 270, 7


def curve(name: str, losses: list[float], since: float = 0.0) -> Curve:
    steps = range(1, len(losses) + 1)
    return Curve(name, NUM_STEPS, tuple(steps), tuple(losses), tuple(since + step for step in steps))


def falling(scale: float, noise: float, seed: int) -> list[float]:
    rng = np.random.default_rng(seed)
    return [scale * step**-0.3 + noise * float(rng.normal()) for step in range(1, NUM_STEPS + 1)]


def losses_of(num_trials: int) -> list[list[float]]:
    rng = np.random.default_rng(5)
    return [falling(float(rng.uniform(2, 4)), 0.2, seed) for seed in range(num_trials)]


def test_halving_ends_the_trials_that_optunas_pruner_ends_where_it_ends_them() -> None:
    study = optuna.create_study(pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=10, reduction_factor=3))
    ours: list[Curve] = []
    for number, losses in enumerate(losses_of(40)):
        trial = study.ask()
        last = NUM_STEPS
        for step, loss in enumerate(losses, start=1):
            trial.report(loss, step)
            if trial.should_prune():
                last = step
                break
        done = last == NUM_STEPS
        study.tell(trial, state=None if done else optuna.trial.TrialState.PRUNED, values=losses[-1] if done else None)
        own = [curve(str(number), losses[:step], number * 1000.0) for step in range(1, NUM_STEPS + 1)]
        ended = next((each for each in own if why_not_promoted(each, ours)), own[-1])
        assert len(ended.tokens) == last
        ours.append(ended)
    assert {len(each.tokens) for each in ours} == {10, 30, 90, NUM_STEPS}


def test_the_median_ends_the_trials_that_optunas_pruner_ends_where_it_ends_them() -> None:
    first = math.ceil(0.1 * NUM_STEPS)
    study = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=first))
    ours: list[Curve] = []
    ends: list[int] = []
    for number, losses in enumerate(losses_of(30)):
        trial = study.ask()
        last = NUM_STEPS
        for step, loss in enumerate(losses, start=1):
            trial.report(loss, step)
            if trial.should_prune():
                last = step
                break
        done = last == NUM_STEPS
        study.tell(trial, state=None if done else optuna.trial.TrialState.PRUNED, values=losses[-1] if done else None)
        judged = (step for step in range(1, NUM_STEPS + 1) if why_below_median(curve("own", losses[:step]), ours))
        ends.append(next(judged, NUM_STEPS))
        assert ends[-1] == last
        if done:
            ours.append(curve(str(number), losses))
    assert min(ends) == first < max(ends)


def test_who_comes_later_is_no_reason_to_end_a_trial_that_had_passed() -> None:
    passed, better = curve("passed", [3.0] * 20), curve("better", [1.0] * 20, since=100.0)
    assert why_not_promoted(passed, [better]) == ""
    later = curve("later", [2.0] * 20, since=200.0)
    assert "is number 2 of 3, and one in 3 goes on" in why_not_promoted(later, [passed, better])


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_losses_that_are_no_numbers_any_more_end_a_trial(lost: float) -> None:
    others = [curve(str(number), [3.0] * NUM_STEPS) for number in range(5)]
    for finite in (0, 1, 25):
        diverged = curve("own", [1.0] * finite + [lost] * 2)
        assert why_not_promoted(diverged, others) == why_below_median(diverged, []) == DIVERGED


def test_a_loss_that_is_no_number_once_ends_no_trial() -> None:
    others = [curve(str(number), [3.0] * NUM_STEPS) for number in range(5)]
    for number in range(30):
        skipped = curve("own", [2.0] * number + [math.nan] + [2.0] * (29 - number))
        assert why_not_promoted(skipped, others) == why_below_median(skipped, others) == ""
        assert why_not_promoted(curve("worse", [2.5] * 30, since=100.0), [skipped, *others[:1]]) != ""


@pytest.fixture(scope="module")
def sweep() -> LossSweep:
    return LossSweep(*LOSS, "search=random", "search.pruner=halving")


def smoothed(sweep: LossSweep, losses: list[float]) -> Curve:
    """The curve of a trial that had these losses, of as many steps as a sweep's points of 8 sequences train."""
    trial = sweep.trial(Proposal({"training.learning_rate": 1e-3, "batch.global_batch_size": 8}, ""))
    assert trial.experiment is not None
    assert trial.experiment.training.num_steps // LAST_PART == WINDOW
    reading = CurveReading(folder=NOWHERE, experiment=trial.experiment, trial=trial, left=None, curve=tuple(losses))
    found = Curve.of(reading)
    assert found is not None
    return found


def test_a_smoothed_curve_leaves_out_the_losses_that_are_no_numbers(sweep: LossSweep) -> None:
    losses = [4.0, math.inf, 2.0, 3.0, *[1.0] * WINDOW]
    found = smoothed(sweep, losses)
    assert found.losses[:4] == (4.0, 4.0, 3.0, 3.0)
    assert found.losses[-1] == 1.0
    assert not found.has_diverged


def test_a_smoothed_curve_begins_with_the_first_loss_that_is_a_number(sweep: LossSweep) -> None:
    assert smoothed(sweep, [math.nan, math.inf, 2.0, 4.0]).losses == (2.0, 3.0)


def test_a_whole_window_without_a_number_is_a_training_that_diverged(sweep: LossSweep) -> None:
    assert not smoothed(sweep, [2.0, *[math.nan] * WINDOW]).has_diverged
    assert smoothed(sweep, [2.0, *[math.nan] * (WINDOW + 1)]).has_diverged


@pytest.mark.parametrize("pruner", ["median", "halving"])
def test_a_trial_that_has_made_its_last_step_is_not_ended(sweep: LossSweep, pruner: Pruner) -> None:
    def reading(rate: float, loss: float, share: float, *, ended: bool = False) -> CurveReading:
        trial = sweep.trial(Proposal({"training.learning_rate": rate}, ""))
        steps = (loss,) * round(share * trial.planned.training.num_steps)
        left = sweep.ended(trial).left if ended else None
        since = 1e6 * rate
        return CurveReading(
            folder=NOWHERE, experiment=trial.experiment, trial=trial, left=left, curve=steps, since=since
        )

    ended = [reading(number / 1000, 2.0, 1.0, ended=True) for number in range(1, 6)]
    running, done = reading(0.1, 9.0, 0.9), reading(0.2, 9.0, 1.0)
    assert [each.trial_id for each in prunings(pruner, [*ended, running, done])] == [running.trial.trial_id]


AXIS = "sweep.axes={trainer.params.lr:{low:0.001,high:1.0,log:true}}"
SCRIPT = (
    "sweep=_script",
    "sweep.name=fit",
    "trainer.command=['fit.py','{lr}']",
    AXIS,
    "search=random",
    "search.objective=loss",
)


@pytest.mark.parametrize("pruner", ["median", "halving"])
def test_a_script_is_taken_to_make_as_many_steps_as_the_longest_that_has_ended(pruner: Pruner) -> None:
    script = LossSweep(*SCRIPT)

    def reading(lr: float, loss: float, num_steps: int, *, ended: bool = False) -> CurveReading:
        trial = script.trial(Proposal({"trainer.params.lr": lr}, ""))
        left = script.ended(trial).left if ended else None
        steps = (loss,) * num_steps
        return CurveReading(
            folder=NOWHERE, experiment=trial.experiment, trial=trial, left=left, curve=steps, since=1e6 * lr
        )

    running, done = reading(0.1, 9.0, 90), reading(0.2, 9.0, 100)
    assert prunings(pruner, [running, done]) == []  # nobody knows yet how many there are
    ended = [reading(number / 1000, 2.0, 100, ended=True) for number in range(1, 6)]
    assert [each.trial_id for each in prunings(pruner, [*ended, running, done])] == [running.trial.trial_id]


@pytest.mark.slow
@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("pruner", ["median", "halving"])
def test_running_trials_of_other_batch_sizes_are_compared_after_as_many_tokens(pruner: str, held_out: bool) -> None:
    every = ("training.evaluate_every=1", "data.held_out_fraction=0.1") if held_out else ()
    sweep = LossSweep(*LOSS, "search=random", f"search.pruner={pruner}", *every)

    def reading(batch: int, loss: float, since: float, share: float = 1.0, number: int = 0) -> CurveReading:
        point: dict[str, Value] = {"training.learning_rate": loss / 1000, "batch.global_batch_size": batch}
        trial = sweep.trial(Proposal(with_seed(point, number, sweep.composition.tree), ""))
        assert trial.experiment is not None
        return CurveReading(
            folder=NOWHERE,
            experiment=trial.experiment,
            trial=trial,
            left=sweep.ended(trial).left if share == 1.0 else None,
            curve=(loss,) * round(share * trial.experiment.training.num_steps),
            since=since,
            held_out=held_out,
        )

    ended = [reading(batch, loss, 0.0) for batch, loss in ((8, 2.0), (16, 2.1), (32, 2.2), (16, 2.3), (8, 2.4))]
    poor, good = reading(16, 3.0, 1000.0, share=0.5), reading(32, 1.5, 1000.0, share=0.5)
    (pruned,) = sweep.search.prune([*ended, poor, good])
    assert pruned.trial_id == poor.trial.trial_id
    assert pruned.because.startswith("its best loss so far, 3," if pruner == "median" else "its loss 3 after")
    seed = reading(16, 3.0, 1000.0, share=0.5, number=1)
    assert [each.trial_id for each in sweep.search.prune([*ended, seed, good])] == [seed.trial.trial_id]
    # Of a point that was measured every seed counts, not only those that happened to do well.
    assert sweep.search.prune([*ended, reading(16, 3.0, 0.0), seed, good]) == []
    assert prunings("none", [*ended, poor, good]) == []
