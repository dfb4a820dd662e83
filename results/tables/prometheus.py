"""The progress of sweeps as gauges in the text format of Prometheus: for sites that watch their jobs with it.

node_exporter's textfile collector reads such a file from a folder. A trial has gauges of its own only while it runs, so
that their number stays that of the jobs, however much a sweep has measured.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from sweeps.folder.journal import History
from sweeps.ranking.points import best_reading
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep, age_seconds
from train_core.trial.measurement import Outcome

PREFIX = "trisweep_"
GAUGES = {
    "unreadable_sweeps": "Sweeps of the output folder whose record cannot be read, and which are missing here.",
    "trials": "Trials of a sweep in each state.",
    "ended": "1 once a sweep has ended or was cancelled; 0 while it waits, runs or is paused.",
    "spent_device_seconds": "Device-seconds of trials that have ended.",
    "best_step_seconds": "Measured seconds of an optimizer step of the trial that is best by the sweep's objective.",
    "best_tokens_per_second": "Measured tokens a second of the trial that is best by the sweep's objective.",
    "best_model_flops_per_second_per_device": "Measured model FLOP/s of each device of that trial.",
    "trial_step": "The last optimizer step of a trial that runs.",
    "trial_steps": "Optimizer steps that a trial that runs takes in all.",
    "trial_loss": "Loss of the last step of a trial that runs.",
    "trial_step_seconds": "Seconds of the last step of a trial that runs.",
    "trial_age_seconds": "Seconds since a trial that runs was started.",
}


class Sample(NamedTuple):
    """One value of one gauge."""

    gauge: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class SweepState:
    """A sweep, and how its trials stood when it was read."""

    sweep: Sweep
    trials: Sequence[TrialReading]
    history: History

    def samples(self) -> Iterator[Sample]:
        of_sweep = {"sweep": self.sweep.folder.path.name}
        counts = Counter(trial.outcome.value if trial.outcome else "LEFT_OUT" for trial in self.trials)
        for outcome, number in counts.items():
            yield Sample("trials", of_sweep | {"outcome": outcome}, number)
        yield Sample("ended", of_sweep, self.history.has_ended([trial.outcome for trial in self.trials]))
        yield Sample("spent_device_seconds", of_sweep, self.history.device_seconds)
        best = best_reading(self.sweep.record, self.trials)
        if best is not None and (measured := best.performance) is not None:
            of_best = of_sweep | {"trial": best.name}
            yield Sample("best_step_seconds", of_best, measured.step_seconds)
            yield Sample("best_tokens_per_second", of_best, measured.tokens_per_second)
            yield Sample("best_model_flops_per_second_per_device", of_best, measured.model_flops_per_second_per_device)
        for trial in (each for each in self.trials if each.outcome is Outcome.RUNNING):
            of_trial = of_sweep | {"trial": trial.name}
            if (age := age_seconds(trial, time.time())) is not None:
                yield Sample("trial_age_seconds", of_trial, age)
            if trial.steps:
                last = trial.steps[-1]
                yield Sample("trial_step", of_trial, last.step)
                yield Sample("trial_steps", of_trial, last.num_steps)
                yield Sample("trial_loss", of_trial, last.loss)
                yield Sample("trial_step_seconds", of_trial, last.step_seconds)


def gauges_text(states: Sequence[SweepState], *, num_unreadable: int) -> str:
    """The gauges of these sweeps in Prometheus' text format; one without a value is left out."""
    registry = CollectorRegistry()
    samples = [Sample("unreadable_sweeps", {}, num_unreadable), *(each for state in states for each in state.samples())]
    for name, says in GAUGES.items():
        if of_gauge := [sample for sample in samples if sample.gauge == name]:
            gauge = Gauge(PREFIX + name, says, list(of_gauge[0].labels), registry=registry)
            for sample in of_gauge:
                (gauge.labels(**sample.labels) if sample.labels else gauge).set(sample.value)
    return generate_latest(registry).decode()
