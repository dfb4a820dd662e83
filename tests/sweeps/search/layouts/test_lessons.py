"""What a search says that it has learned, and which running trials it would end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pytest

from benchmarks.replay.run import NOWHERE, ReplayedReading
from sweeps.search.layouts.bayes import SURPRISE
from tests.sweeps.search.conftest import SWEEP, Replay
from train_core.trial.measurement import StepMetrics


@dataclass(frozen=True, kw_only=True)
class Running(ReplayedReading):
    """A trial that runs and has made steps of these seconds, the first of them to warm up."""

    seconds: tuple[float, ...]

    @cached_property
    def steps(self) -> tuple[StepMetrics, ...]:
        return tuple(step_of(number, seconds) for number, seconds in enumerate(self.seconds, start=1))


def step_of(number: int, seconds: float) -> StepMetrics:
    return StepMetrics(
        step=number,
        num_steps=20,
        loss=1.0,
        gradient_norm=1.0,
        learning_rate=1e-4,
        step_seconds=seconds,
        tokens_per_second=1.0,
        model_flops_per_second_per_device=1.0,
        warmup=number == 1,
        time=0.0,
    )


@pytest.fixture(scope="module")
def best(replay: Replay) -> ReplayedReading:
    return replay.ended(replay.baseline)


def running(replay: Replay, best: ReplayedReading, *factors: float) -> Running:
    assert best.performance is not None
    trial = replay.trial(replay.search.ask([best], 1).proposals[0])
    seconds = tuple(factor * best.performance.step_seconds for factor in factors)
    return Running(folder=NOWHERE, experiment=trial.experiment, trial=trial, left=None, seconds=seconds)


@pytest.mark.slow
def test_a_trial_clearly_slower_than_the_best_is_ended(replay: Replay, best: ReplayedReading) -> None:
    slow = running(replay, best, 5.0, 1.5, 1.3, 1.4)
    (pruning,) = replay.search.prune([best, slow])
    assert pruning.trial_id == slow.trial.trial_id
    assert "30% slower" in pruning.because


@pytest.mark.slow
@pytest.mark.parametrize("factors", [(), (5.0,), (5.0, 1.4), (5.0, 1.4, 1.05), (5.0, 0.9, 0.9)])
def test_no_trial_is_ended_for_warm_up_noise_or_a_single_step(
    replay: Replay, best: ReplayedReading, factors: tuple[float, ...]
) -> None:
    assert replay.search.prune([best, running(replay, best, *factors)]) == []


@pytest.mark.slow
def test_nothing_is_ended_while_there_is_nothing_to_compare_with(replay: Replay, best: ReplayedReading) -> None:
    assert replay.search.prune([running(replay, best, 5.0, 1.5, 1.5)]) == []


@pytest.mark.slow
def test_a_search_says_how_far_the_prediction_was_off() -> None:
    # What disturbs a trial is drawn by its fingerprint, of which the steps are a part.
    steps = ("training.num_steps=10", "training.num_warmup_steps=3")
    replay = Replay([*SWEEP, "profile=breakdown", *steps], seed=1)
    trials = [replay.ended(replay.baseline)]
    assert replay.search.lessons(trials) == []
    for _ in range(4):
        trials.append(replay.ended(replay.trial(replay.search.ask(trials, 1).proposals[0])))
    step, *terms = replay.search.lessons(trials)
    assert step.startswith("measured steps take 1.1")
    assert any(sentence.startswith("computation costs 1.12") for sentence in terms)
    assert SURPRISE not in terms
    assert "plans need" in terms[-1]
