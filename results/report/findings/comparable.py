"""The parts of a trial's prediction that may be compared with parts of its measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from sweeps.confidence import Interval, interval_of
from sweeps.reading import TrialReading
from sweeps.trial import Trial
from train_core.axes import PREDICTED_TERMS
from train_core.costs import Estimate, StepTime
from train_core.measurement import Performance, StepTerms


@dataclass(frozen=True)
class Pair:
    """A trial that was both predicted and measured."""

    reading: TrialReading
    predicted: Estimate
    measured: Performance

    @cached_property
    def interval(self) -> Interval:
        """The interval in which the measured step was expected to lie."""
        return interval_of(self.reading.planned, self.predicted.implementation, self.predicted)


def pairs(results: Sequence[TrialReading]) -> list[Pair]:
    """The trials that were predicted and measured, in the order of `results`."""
    return [
        Pair(result, result.trial.estimate, result.performance)
        for result in results
        if result.trial.estimate and result.performance
    ]


def timed_pairs(compared: Sequence[Pair]) -> list[Pair]:
    """Return the pairs whose measured time may be compared with the predicted one, as no ranks shared a device."""
    return [pair for pair in compared if not pair.reading.shares_devices]


def memory_as_measured(trial: Trial) -> int:
    """The predicted memory that corresponds to the measured one.

    On a GPU torch counts its tensors alone; on a CPU the memory of the whole process is measured.
    """
    predicted, on_gpu = trial.predicted, trial.planned.cluster.device.kind == "gpu"
    return predicted.allocated_bytes if on_gpu else predicted.peak_memory_bytes


def predicted_terms(time: StepTime) -> tuple[float, ...]:
    """Seconds in the order of `StepTerms`."""
    seconds = time.by_term()
    return tuple(sum(seconds[name] for name in PREDICTED_TERMS[measured]) for measured in StepTerms.model_fields)


def measured_terms(terms: StepTerms) -> tuple[float | None, ...]:
    return tuple(getattr(terms, name) for name in StepTerms.model_fields)


def display_name(result: TrialReading) -> str:
    return result.label + (" (baseline)" if result.trial.is_baseline else "")
