"""What the steps of a run measured: the middle of the steady ones, and what stands beside them.

A line about steps is the mean of those that it covers. The first lines hold what happens once (compilation, the first
reads of data); single slow lines hold saving and evaluation. Both are set aside and said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, median_low, quantiles

import numpy as np

from conf.errors import ConfigError
from conf.grouped import grouped
from diagnose.runs import LoggedStep, LogLine, UserRun
from sweeps.ranking.disturbed import disturbed_runs
from sweeps.table.cells import number_of

WARM = 1.1
"""A first line that is slower than the later ones by this factor is warm-up."""
SPIKE = 1.2
MOST_SPIKES = 0.34
"""More slow lines than this share are no spikes but the run's own pace."""
UNSTEADY = 0.3
"""Where the middle half of the lines spreads over more than this share of their middle, no one number says it."""
LEAST_LINES = 3
SHIFT, DRIFT, TWO_SPEEDS = "changed its pace", "drifted", "ran at two speeds"


@dataclass(frozen=True)
class Spikes:
    """Single slow lines among steady ones.

    Attributes:
        extra_seconds: of all of them together, beyond steady steps.
        share: of the time of all steps after the warm-up.
        every: steps from one to the next, where these are equal.
    """

    lines: tuple[LoggedStep, ...]
    extra_seconds: float
    share: float
    every: int | None


@dataclass(frozen=True)
class Pace:
    """A run whose steps are not of one pace.

    Attributes:
        kind: `SHIFT`, `DRIFT` or `TWO_SPEEDS`.
        slower_seconds: the middle of its slow part, where `MeasuredSteps.step_seconds` is that of the fast one.
        at: the first line of the later part; None of two speeds by turns.
    """

    kind: str
    slower_seconds: float
    slower_share: float
    at: LogLine | None
    gets_slower: bool


@dataclass(frozen=True)
class MeasuredSteps:
    """The steps of one run.

    Attributes:
        step_seconds: the middle of the steady lines; of a run of two paces that of its fast part.
        low_seconds, high_seconds: the middle half of the lines lies between these.
        is_steady: False where the lines spread too wide for one number.
        other_batches: seconds of a step by the sequences of a step, of lines with another batch than most.
        flops_per_second: of one device, as the log counts them.
        reserved_bytes, allocated_bytes: the most that any device says.
    """

    steady: tuple[LoggedStep, ...]
    step_seconds: float
    low_seconds: float
    high_seconds: float
    is_steady: bool
    warmup: tuple[LoggedStep, ...]
    spikes: Spikes | None
    pace: Pace | None
    batch: int | None
    other_batches: dict[int, float]
    flops_per_second: float | None
    mfu: float | None
    tokens_per_second: float | None
    reserved_bytes: float | None
    allocated_bytes: float | None

    @property
    def holds_first_step(self) -> bool:
        """True if nothing but the first line says how long a step takes: it holds the compilation."""
        first = self.steady[0]
        return len(self.steady) == 1 and not self.warmup and first.number <= first.covers


def measured(run: UserRun) -> MeasuredSteps | None:
    """What the run's steps say; None where it has none."""
    timed = _as_told(run) or [step for step in run.steps if step.seconds > 0]  # NaN is above nothing
    if not timed:
        return None
    by_batch = grouped(timed, lambda step: step.batch)
    batch, lines = max(by_batch.items(), key=lambda each: sum(step.covers for step in each[1]))
    kept, warmup = _without_warmup(lines)
    steady, spikes = _without_spikes(kept)
    pace, fast = _pace_of(steady)
    low, high = _middle_half([step.seconds for step in fast])
    middle = median(step.seconds for step in fast)
    others = {size: median(_seconds(steps)) for size, steps in by_batch.items() if size is not None and size != batch}
    return MeasuredSteps(
        steady=tuple(fast),
        step_seconds=middle,
        low_seconds=low,
        high_seconds=high,
        is_steady=len(fast) < LEAST_LINES or high - low <= UNSTEADY * middle,
        warmup=tuple(warmup),
        spikes=spikes,
        pace=pace,
        batch=batch,
        other_batches=others,
        flops_per_second=_middle(fast, lambda step: step.tflops and step.tflops * 1e12),
        mfu=_middle(fast, lambda step: step.mfu),
        tokens_per_second=_middle(fast, lambda step: step.tokens_per_second),
        reserved_bytes=_most([step.memory_bytes for step in run.steps] + [each.reserved for each in run.memory]),
        allocated_bytes=_most([step.allocated_bytes for step in run.steps] + [each.allocated for each in run.memory]),
    )


def _as_told(run: UserRun) -> list[LoggedStep]:
    """The step that the command tells of, in place of lines about steps: by its seconds, or by tokens a second."""
    row = run.row()
    try:
        seconds, rate = number_of(row, "iter_time_s"), number_of(row, "tokens_per_s")
        tokens = (number_of(row, "global_batch") or 0.0) * (number_of(row, "seq") or 0.0)
    except ConfigError:
        return []
    told = run.columns.get("iter_time_s" if seconds else "tokens_per_s")
    seconds = seconds or (tokens / rate if rate and tokens else None)
    if told is None or told.at is None or seconds is None:
        return []
    return [LoggedStep(2, seconds, told.at, tokens_per_second=rate)]


def _seconds(steps: Sequence[LoggedStep]) -> list[float]:
    return [step.seconds for step in steps]


def _middle(steps: Sequence[LoggedStep], value_of: Callable[[LoggedStep], float | None]) -> float | None:
    values = [value for step in steps if (value := value_of(step)) is not None]
    return median(values) if values else None


def _most(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _middle_half(seconds: Sequence[float]) -> tuple[float, float]:
    if len(seconds) < LEAST_LINES:
        return min(seconds), max(seconds)
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return low, high


def _without_warmup(lines: Sequence[LoggedStep]) -> tuple[list[LoggedStep], list[LoggedStep]]:
    """The lines, and the first ones that are slower than the later half; drift towards slow steps has none."""
    later = median(_seconds(lines[len(lines) // 2 :]))
    most = len(lines) // 2
    number = next((place for place, step in enumerate(lines) if step.seconds <= WARM * later), 0)
    number = min(number, most)
    return list(lines[number:]), list(lines[:number])


def _without_spikes(lines: list[LoggedStep]) -> tuple[list[LoggedStep], Spikes | None]:
    middle = median_low(_seconds(lines))  # of a run of two paces that of the fast part
    is_slow = [step.seconds > SPIKE * middle for step in lines]
    # Where the next two lines are slow as well, the run has become slow, and this is no spike.
    goes_on = any(slow and is_slow[place + 1 : place + 3] == [True, True] for place, slow in enumerate(is_slow))
    slow = [step for step, so in zip(lines, is_slow, strict=True) if so]
    if len(lines) < LEAST_LINES or not slow or goes_on or len(slow) > MOST_SPIKES * len(lines):
        return lines, None
    steady = [step for step, so in zip(lines, is_slow, strict=True) if not so]
    extra = sum((step.seconds - middle) * step.covers for step in slow)
    whole = sum(step.seconds * step.covers for step in lines)
    gaps = {later.number - step.number for step, later in pairwise(slow)}
    every = gaps.pop() if len(gaps) == 1 and len(slow) > 2 else None
    return steady, Spikes(tuple(slow), extra, extra / whole, every)


def _pace_of(lines: list[LoggedStep]) -> tuple[Pace | None, list[LoggedStep]]:
    """What the run's pace did, if anything, and the lines of its fast part."""
    logs = np.log(_seconds(lines))
    if not disturbed_runs([_seconds(lines)])[0]:
        return None, lines
    size, place = len(lines), np.arange(len(lines))
    line = float(np.corrcoef(place, logs)[0, 1] ** 2)
    cut, by_time = _best_cut(logs)
    order = np.argsort(logs, kind="stable")
    split, by_speed = _best_cut(logs[order])
    if max(line, by_time) < by_speed - 0.1:
        fast = [lines[index] for index in sorted(order[:split])]
        slow = [lines[index] for index in sorted(order[split:])]
        return Pace(TWO_SPEEDS, median(_seconds(slow)), len(slow) / size, None, False), fast
    if by_time > line:
        first, later = lines[:cut], lines[cut:]
        kind, at = SHIFT, later[0].at
    else:
        quarter = max(1, size // 4)
        first, later = lines[:quarter], lines[-quarter:]
        kind, at = DRIFT, later[0].at
    slower = median(_seconds(later)) > median(_seconds(first))
    fast, slow = (first, later) if slower else (later, first)
    return Pace(kind, median(_seconds(slow)), len(slow) / size, at, slower), fast


def _best_cut(logs: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[int, float]:
    """Where two parts that follow each other explain most of the variance, and the share that they do."""
    centred = logs - logs.mean()
    below = np.arange(1, len(logs))
    between = np.cumsum(centred)[:-1] ** 2 * len(logs) / (below * (len(logs) - below))
    best = int(between.argmax())
    return best + 1, float(between[best] / (centred**2).sum())
