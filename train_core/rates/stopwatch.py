"""Times pieces of work on all ranks at the same moment, often enough to trust it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from train_core.parallel.collectives import Axis, maximum, total
from train_core.process.world import World
from train_core.rates.record import MeasuredSpread
from train_core.training.meter import synchronize

NUM_WARM_UPS = 2
"""The first run loads kernels and joins ranks, and the time of the second says how many runs make a sample."""

MOST_RUNS = 10_000
Run: TypeAlias = Callable[[], object]


@dataclass(frozen=True)
class Stopwatch:
    """Every rank has one, and times the same pieces of work in the same order.

    Attributes:
        axis: all ranks of the job.
        num_samples: how often a quantity is measured, for about `sample_seconds` each.
    """

    world: World
    axis: Axis
    num_samples: int
    sample_seconds: float

    def slowest_seconds(self, runs: Sequence[Run]) -> list[MeasuredSpread]:
        """Seconds of one run of each of `runs`, on the rank that takes longest."""
        # The slowest rank counts, for a job waits for it in every step.
        own = self._samples(runs)
        return [MeasuredSpread.of(maximum(samples, self.axis, self.world.device)) for samples in own]

    def mean_rates(self, works: Sequence[tuple[float, Run]]) -> list[MeasuredSpread]:
        """Units of work that a rank does per second, as the mean over all ranks.

        Args:
            works: how many units a run does, and the run.
        """
        own = self._samples([run for _, run in works])
        rates = [[work / seconds for seconds in samples] for (work, _), samples in zip(works, own, strict=True)]
        sums = (total(samples, self.axis, self.world.device) for samples in rates)
        return [MeasuredSpread.of([rate / self.axis.size for rate in samples]) for samples in sums]

    def _samples(self, runs: Sequence[Run]) -> list[list[float]]:
        """This rank's seconds per run. Every round times all of `runs`, so that a disturbance meets them alike."""
        counts = [self._enough(run) for run in runs]
        rounds = [
            [self._seconds(run, count) for run, count in zip(runs, counts, strict=True)]
            for _ in range(self.num_samples)
        ]
        return [list(samples) for samples in zip(*rounds, strict=True)]

    def _enough(self, run: Run) -> int:
        """The number of runs in one sample; the same on all ranks."""
        for _ in range(NUM_WARM_UPS):
            once = self._seconds(run, 1)
        # Ranks that ran a collective a different number of times would wait for each other for ever.
        slowest = maximum([once], self.axis, self.world.device)[0]
        return min(MOST_RUNS, max(1, math.ceil(self.sample_seconds / slowest)))

    def _seconds(self, run: Run, num_runs: int) -> float:
        total([0.0], self.axis, self.world.device)  # so that all ranks start together
        synchronize(self.world.device)
        start = time.perf_counter()
        for _ in range(num_runs):
            run()
        synchronize(self.world.device)
        return (time.perf_counter() - start) / num_runs
