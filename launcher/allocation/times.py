"""How long a trial is expected to take: as predicted, corrected by how the trials before it went."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from sweeps.reading import TrialReading
from sweeps.trial import Trial

START_SECONDS = 60.0
"""Assumed for importing, meeting and leaving until a trial has shown how long that takes."""


@dataclass(frozen=True)
class Expectation:
    """Attributes:
    start_seconds: of a trial beside its steps.
    ratio: of a measured step to the predicted one.
    limit_seconds: after which a trial is ended.
    """

    limit_seconds: float
    start_seconds: float = START_SECONDS
    ratio: float = 1.0

    @classmethod
    def after(cls, readings: Iterable[TrialReading], limit_seconds: float) -> Expectation:
        """What the trials that have been measured make one expect of the others: medians, as few may stand out."""
        measured = [each for each in readings if each.performance and each.trial.estimate]
        if not measured:
            return cls(limit_seconds)
        return cls(limit_seconds, median(map(_beside_steps, measured)), median(map(_ratio, measured)))

    def seconds(self, trial: Trial) -> float:
        if trial.estimate is None or trial.experiment is None:
            return self.limit_seconds
        steps = self.ratio * trial.estimate.step_seconds * trial.experiment.training.num_steps
        return min(self.limit_seconds, self.start_seconds + steps)


def _beside_steps(reading: TrialReading) -> float:
    assert reading.performance
    assert reading.measurement
    took = reading.measurement.ended - reading.measurement.started
    return max(0.0, took - reading.performance.step_seconds * reading.num_steps)


def _ratio(reading: TrialReading) -> float:
    assert reading.performance
    assert reading.trial.estimate
    return reading.performance.step_seconds / reading.trial.estimate.step_seconds
