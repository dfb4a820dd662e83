"""The trials of a sweep as a search sees them: what was measured, what still runs, what ran out of memory or failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log, nan
from statistics import median

import numpy as np

from costs.setting import Floats, Plans
from costs.terms import STEP_TERMS
from sweeps.reading import TrialReading
from sweeps.search.layouts.candidates import Candidates, priced_experiment
from sweeps.search.layouts.memory_fit import MemorySeen
from sweeps.search.layouts.priced import Priced, join_plans
from sweeps.search.layouts.surrogate import PARTS, Seen
from train_core.trial.measurement import LIVE, Outcome

NOISE = 0.02  # of the median of a completed trial's steps, as a share of it
NOISE_OF_FEW_STEPS = 0.04
WITHOUT_RATE = (Outcome.FAILED, Outcome.TIMED_OUT)


@dataclass(frozen=True)
class Observed:
    """The observations of all trials, each by its number in `priced`.

    Attributes:
        rows: their numbers among the candidates; -1 where the trial is none of them.
        seconds: measured seconds of a step; NaN where there are none yet.
    """

    priced: Priced
    rows: list[int]
    readings: list[TrialReading]
    seconds: Floats
    noise: Floats

    @property
    def has_rate(self) -> list[int]:
        return [int(number) for number in np.flatnonzero(np.isfinite(self.seconds))]

    @property
    def plans_in_flight(self) -> Priced:
        is_live = np.array([reading.outcome in LIVE for reading in self.readings], dtype=bool)
        return self.priced.rows(is_live & ~np.isfinite(self.seconds))

    @property
    def running(self) -> list[int]:
        return [number for number, reading in enumerate(self.readings) if reading.outcome is Outcome.RUNNING]

    @property
    def failed_plans(self) -> Plans:
        failed = [reading.outcome in WITHOUT_RATE for reading in self.readings]
        return self.priced.plans.rows(np.array(failed, dtype=bool))

    def measured_rates(self) -> Seen:
        chosen = np.array(self.has_rate, dtype=int)
        parts = [_log_parts(self.readings[number], self.priced.terms[number]) for number in chosen]
        log_parts = np.array(parts, dtype=np.float64).reshape(len(chosen), len(PARTS))
        return Seen(self.priced.rows(chosen), np.log(self.seconds[chosen]), self.noise[chosen], log_parts)

    def memory(self) -> MemorySeen:
        """Return the known bytes of plans: exact where they were measured, a bound where memory ran out."""
        exact: list[tuple[int, float]] = []
        bounds: list[tuple[int, float]] = []
        for number, reading in enumerate(self.readings):
            predicted, memory = self.priced.peak_bytes[number], self.priced.memory_bytes[number]
            if reading.outcome is Outcome.OUT_OF_MEMORY:
                bounds.append((number, log((memory + _lacked_bytes(reading)) / predicted)))
            elif (measured := _needed_bytes(reading)) is not None:
                exact.append((number, log(measured / predicted)))
        return MemorySeen.of(self.priced.plans, exact, bounds)


def _lacked_bytes(reading: TrialReading) -> float:
    """Bytes by which the request that failed exceeded the free memory; 0 where they are not known."""
    ended = reading.measurement or reading.failure
    return (ended.over_capacity_bytes or 0.0) if ended else 0.0


def _needed_bytes(reading: TrialReading) -> float | None:
    """Bytes of a completed trial's fullest rank, with what the framework reserves."""
    performance, experiment = reading.performance, reading.experiment
    if performance is None or experiment is None or not performance.peak_memory_bytes:
        return None
    # On a GPU torch counts its tensors alone; on a CPU the memory of the whole process is measured.
    reserved = experiment.cluster.reserved_memory_bytes if experiment.cluster.device.kind == "gpu" else 0
    return max(performance.peak_memory_bytes) + reserved


@dataclass
class Observer:
    """Reads trials against the candidates. It remembers what each trial's plan is, which never changes.

    Attributes:
        candidates: None where only the trials themselves are asked about.
    """

    candidates: Candidates | None
    _known: dict[str, tuple[int, Priced]] = field(default_factory=dict)

    def observe(self, trials: Sequence[TrialReading]) -> Observed:
        readings = [reading for reading in trials if reading.experiment is not None]
        known = [self._plan(reading) for reading in readings]
        measured = [_measured_seconds(reading) for reading in readings]
        return Observed(
            priced=join_plans([plan for _, plan in known]),
            rows=[row for row, _ in known],
            readings=readings,
            seconds=np.array([seconds for seconds, _ in measured], dtype=np.float64),
            noise=np.array([noise for _, noise in measured], dtype=np.float64),
        )

    def _plan(self, reading: TrialReading) -> tuple[int, Priced]:
        name = reading.trial.trial_id
        if name not in self._known:
            row = self.candidates.row_of(reading.planned) if self.candidates else None
            if row is None or self.candidates is None:
                self._known[name] = -1, priced_experiment(reading.planned)
            else:
                self._known[name] = row, self.candidates.prices.rows(slice(row, row + 1))
        return self._known[name]


def _measured_seconds(reading: TrialReading) -> tuple[float, float]:
    """Seconds of a step and the share by which they may be off; NaN where nothing was measured."""
    if reading.performance is not None:
        return reading.performance.step_seconds, NOISE
    if reading.outcome in (Outcome.RUNNING, Outcome.PRUNED) and (steps := reading.timed_seconds):
        return median(steps), NOISE_OF_FEW_STEPS
    return nan, NOISE


def _log_parts(reading: TrialReading, terms: Floats) -> list[float]:
    """Logarithms of the measured parts of the slowest rank's step; NaN where one is unknown or predicted to be 0."""
    if reading.performance is None or reading.performance.breakdown is None:
        return [nan] * len(PARTS)
    measured = [getattr(reading.performance.breakdown.slowest, name) for name in PARTS]
    predicted = [sum(terms[STEP_TERMS.index(name)] for name in names) for names in PARTS.values()]
    return [log(one) if one and other > 0 else nan for one, other in zip(measured, predicted, strict=True)]
