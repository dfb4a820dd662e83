"""Sweeps of learning rates and batch sizes on a made-up loss, with everything in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from benchmarks.replay.machine import InventedMachine
from benchmarks.replay.run import ReplayedReading, replay_trial, replayed_reading
from conf.plan.experiment import Experiment
from sweeps.points.plan import plan_sweep, trial_of
from sweeps.reading import TrialReading
from sweeps.search.registry import search_for
from sweeps.search.searcher import Answer, Proposal
from sweeps.trial import Trial
from tests.composed import composed
from train_core.trial.measurement import Outcome, StepMetrics

AXES = "+sweep.axes={training.learning_rate:{low:1e-5,high:1e-1,log:true},batch.global_batch_size:[8,16,32,64]}"
BASE = ("sweep=smoke", "sweep.points=[]", "sweep.max_trials=100")
LOSS = (*BASE, AXES, "search.objective=loss", "search.tokens=20000")
Loss = Callable[[Experiment], float]


def bowl(experiment: Experiment) -> float:
    """A loss whose best is at a rate of 10**-3.3 and 16 sequences, and that differs a little from seed to seed."""
    rate, batch = experiment.training.learning_rate, experiment.batch.global_batch_size
    noise = 0.01 * math.sin(experiment.training.seed)
    return 2 + (math.log10(rate) + 3.3) ** 2 + 0.1 * abs(math.log2(batch / 16)) + noise


class LossSweep:
    """A sweep, its search, and readings as a training would leave them."""

    def __init__(self, *overrides: str, loss: Loss = bowl) -> None:
        self.composition = composed(overrides)
        self.record = plan_sweep(self.composition, proxy=False, git_sha="abc")
        self.search = search_for(self.composition, self.record)
        self.loss = loss
        self.machine = InventedMachine(3)

    def trial(self, proposal: Proposal) -> Trial:
        return trial_of(self.composition.tree, proposal.point, proposal.because)

    def running(self, trial: Trial) -> ReplayedReading:
        return replayed_reading(trial, None)

    def ended(self, trial: Trial) -> ReplayedReading:
        assert trial.experiment is not None
        measured = replay_trial(self.machine, trial.experiment)
        if measured.performance is None:
            return replayed_reading(trial, measured)
        loss = self.loss(trial.experiment)
        learned = measured.performance.model_copy(update={"losses": (loss,), "final_loss": loss})
        return replayed_reading(trial, measured.model_copy(update={"performance": learned}))

    def first(self) -> list[TrialReading]:
        """The trials that the sweep plans by itself, ended."""
        return [self.ended(trial) for trial in self.record.trials if trial.selected]

    def searched(self, num_trials: int, at_once: int = 1) -> tuple[list[TrialReading], Answer]:
        """The trials after so many, or after the search has finished, and its last answer."""
        readings, answer = self.first(), Answer()
        while len(readings) < num_trials:
            answer = self.search.ask(readings, at_once)
            if not answer.proposals:
                break
            readings += [self.ended(self.trial(proposal)) for proposal in answer.proposals]
        return readings, answer


@dataclass(frozen=True, kw_only=True)
class CurveReading(ReplayedReading):
    """A trial with the losses of its first steps on record.

    Attributes:
        curve: loss after each step.
        since: the time of its first step.
        held_out: the losses are those on held-out sequences, and the training loss says nothing.
    """

    curve: tuple[float, ...]
    since: float = 0.0
    held_out: bool = False

    @cached_property
    def steps(self) -> tuple[StepMetrics, ...]:
        return tuple(self._step(number, loss) for number, loss in enumerate(self.curve, start=1))

    def _step(self, number: int, loss: float) -> StepMetrics:
        return StepMetrics(
            step=number,
            num_steps=self.num_steps,
            loss=0.0 if self.held_out else loss,
            gradient_norm=1.0,
            learning_rate=1e-3,
            step_seconds=1.0,
            tokens_per_second=1.0,
            model_flops_per_second_per_device=1.0,
            warmup=False,
            time=self.since + number,
            held_out_loss=loss if self.held_out else None,
        )


def points_of(readings: Sequence[TrialReading]) -> list[dict[str, object]]:
    return [dict(reading.trial.point) for reading in readings]


def completed(readings: Sequence[TrialReading]) -> int:
    return sum(reading.outcome is Outcome.COMPLETED for reading in readings)
