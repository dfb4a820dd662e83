"""The parts of a rank's step, and the ranks that take much longer for their own work than the others."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence

from train_core.axes import MEASURED_TERMS, REPLICAS, Layout
from train_core.measurement import Breakdown, StepTerms

MAX_STEPS = 1000
"""Medians are taken over so many steps, the latest ones: a long training must not fill the memory."""

RECENT_STEPS = 5
TERMS = tuple(StepTerms.model_fields)


def terms_of(step_seconds: float, seconds_of: Mapping[str, float], has_replicas: bool) -> list[float]:
    """A step's terms in the order of `StepTerms`, from its seconds and what the clock counted by line and part.

    Replicas wait for each other in every step. Where the clock has heard of no such wait, that term is NaN.
    """
    by_term = dict.fromkeys(TERMS[1:], 0.0)
    for name, seconds in seconds_of.items():
        by_term[MEASURED_TERMS[name]] += seconds
    if has_replicas and REPLICAS[0] not in seconds_of:  # the name of the group of all of them
        by_term["data_seconds"] = math.nan
    counted = list(by_term.values())
    rest = step_seconds - sum(seconds for seconds in counted if not math.isnan(seconds))
    return [max(seconds, 0.0) for seconds in (rest, *counted)]  # in this order NaN stays


class TermsHistory:
    """The terms of one rank's latest steps."""

    def __init__(self) -> None:
        # Only timed steps count for medians; the latest step of any kind stands in where none was timed.
        self._steps: deque[list[float]] = deque(maxlen=MAX_STEPS)
        self._latest: deque[list[float]] = deque(maxlen=1)
        self._recent_own_seconds: deque[float] = deque(maxlen=RECENT_STEPS)

    def add(self, terms: list[float], *, is_timed: bool) -> None:
        self._recent_own_seconds.append(terms[0] + terms[-1])
        self._latest.append(terms)
        if is_timed:
            self._steps.append(terms)

    def recent_own_seconds(self) -> float:
        """Median of the rank's own work over the last few steps, so that one slow step makes no straggler."""
        return statistics.median(self._recent_own_seconds)

    def medians(self) -> list[float]:
        """Each term's median over the timed steps.

        Where no step was timed they are the latest step's terms; without any step the list is empty.
        """
        return [statistics.median(column) for column in zip(*(self._steps or self._latest), strict=True)]


def breakdown_of(ranks: Sequence[Sequence[float]]) -> Breakdown:
    """The breakdown, from the terms of every rank, which are NaN where they are not known."""
    known = ([None if math.isnan(seconds) else seconds for seconds in values] for values in ranks)
    terms = tuple(StepTerms.model_validate(dict(zip(TERMS, values, strict=True))) for values in known)
    slowest = max(range(len(terms)), key=lambda rank: terms[rank].own_seconds)
    return Breakdown(ranks=terms, slowest_rank=slowest)


def stragglers(own_seconds: Sequence[float], layout: Layout, ratio: float) -> tuple[int, ...]:
    """Ranks whose own work takes longer than `ratio` times the median rank's.

    Stages may have unequal work, so the median is that of the rank's own stage, or of all where a stage is one rank.
    """
    per_stage = layout.world_size // layout.size("pipeline")
    found: list[int] = []
    for first in range(0, len(own_seconds), per_stage):
        stage = own_seconds[first : first + per_stage]
        # The lower median, so that of two ranks the faster one is the measure: their mean would hide a slow one.
        limit = ratio * statistics.median_low(stage if per_stage > 1 else own_seconds)
        found += [first + index for index, seconds in enumerate(stage) if seconds > limit]
    return tuple(found)
