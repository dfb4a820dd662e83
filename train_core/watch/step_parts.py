"""The parts of a rank's step: their medians and who is late, and the times of the passes of one timed step.

Passes are told from what the clock noted anyway. A pass costs one more mark in every step, so that no step need be set
aside to be recorded:

    mark F0      mark F1           mark B0                 mark None     part "optimizer"
    |--- work ---|= input =|- work -|= input =|--- work ---|             |= data =|= world =|-- update --|
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from costs.axes import MEASURED_TERMS, OPTIMIZER, REPLICAS, WORLD, Layout
from train_core.parallel.clock import Clock, StepRecord
from train_core.process.machine import machine_id
from train_core.trial.measurement import Breakdown, StepTerms
from train_core.trial.timeline import (
    MOST_WAITS,
    RecordedPass,
    RecordedWait,
    StageSeconds,
    StageTimeline,
    most_of_a_stage,
)

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
    """Ranks whose own work takes longer than `ratio` times their stage's median.

    Stages may have unequal work. Where a stage is one rank, the median is that of all.
    """
    per_stage = layout.world_size // layout.size("pipeline")
    found: list[int] = []
    for first in range(0, len(own_seconds), per_stage):
        stage = own_seconds[first : first + per_stage]
        # The lower median, so that of two ranks the faster one is the measure: their mean would hide a slow one.
        limit = ratio * statistics.median_low(stage if per_stage > 1 else own_seconds)
        found += [first + index for index, seconds in enumerate(stage) if seconds > limit]
    return tuple(found)


MOST_STEPS = 5
"""Few, because each holds every wait of a step."""
DIGITS = 7
"""Of seconds: a tenth of a microsecond."""
PIPELINE = "pipeline"

SinceBegin = Callable[[Any], float]


class LatestSteps:
    """The records of the latest timed steps."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, StepRecord]] = deque(maxlen=MOST_STEPS)

    def add(self, seconds: float, record: StepRecord) -> None:
        """`seconds` is the slowest rank's time, so that all ranks come to choose the same step."""
        self._steps.append((seconds, record))

    def nearest_to(self, seconds: float) -> tuple[float, StepRecord] | None:
        """The step whose time came nearest, with its time; None where none was timed."""
        return min(self._steps, key=lambda step: abs(step[0] - seconds), default=None)


def stage_timeline(
    step_seconds: float, record: StepRecord, clock: Clock, rank: int, stage: tuple[int, int]
) -> StageTimeline:
    """The record in seconds. The device must be idle.

    Args:
        clock: the one that made the record.
        stage: the rank's, and how many there are.
    """

    def since_begin(mark: Any) -> float:
        return round(clock.seconds_between(record.began, mark), DIGITS)

    passes = list(_passes(record, since_begin))
    waits, ended = _after_passes(record, since_begin)
    return StageTimeline(
        stage=stage[0],
        num_stages=stage[1],
        rank=rank,
        step=record.step,
        step_seconds=step_seconds,
        machine=machine_id(),
        began_at=record.began_at,
        num_passes=len(passes),
        passes=_ends_of(passes, most_of_a_stage(stage[1])),
        after=tuple(waits[:MOST_WAITS]),
        ended=ended,
        seconds=_seconds(passes, waits, ended),
    )


def _passes(record: StepRecord, since_begin: SinceBegin) -> Iterator[RecordedPass]:
    for mark, after in pairwise(record.passes):
        assert mark.action is not None
        start, input_wait, communication = since_begin(mark.at), 0.0, 0.0
        arrived = start
        for span in record.spans[mark.num_spans : after.num_spans]:
            ended = since_begin(span.end)
            waited = ended - since_begin(span.start)
            if span.name == PIPELINE:
                input_wait, arrived = input_wait + waited, ended
            else:
                communication += waited
        waits = round(input_wait, DIGITS), round(communication, DIGITS)
        yield RecordedPass(*mark.action, start, since_begin(after.at), arrived, *waits)


def _after_passes(record: StepRecord, since_begin: SinceBegin) -> tuple[list[RecordedWait], float]:
    """The waits after the last pass, and when the update was over."""
    waits = list[RecordedWait]()
    for span in record.spans[record.passes[-1].num_spans :]:
        if span.name == OPTIMIZER:
            return waits, since_begin(span.end)
        waits.append(RecordedWait(span.name, since_begin(span.start), since_begin(span.end)))
    raise AssertionError("the step has no update")


def _ends_of(passes: Sequence[RecordedPass], most: int) -> tuple[RecordedPass, ...]:
    """All passes, or of too many the first and the last ones."""
    return tuple(passes) if len(passes) <= most else (*passes[: most // 2], *passes[-(most // 2) :])


def _seconds(passes: Sequence[RecordedPass], waits: Sequence[RecordedWait], ended: float) -> StageSeconds:
    def work(kind: str) -> float:
        return sum(each.end - each.start - each.input_wait - each.communication for each in passes if each.kind == kind)

    communication = sum(each.communication for each in passes)
    communication += sum(wait.end - wait.start for wait in waits if wait.line != WORLD)
    bubble = sum(each.input_wait for each in passes)
    bubble += sum(wait.end - wait.start for wait in waits if wait.line == WORLD)
    of_passes = {"forward": work("forward"), "backward": work("backward"), "weight_gradient": work("weight")}
    rest = ended - sum(of_passes.values()) - communication - bubble
    known = of_passes | {"communication": communication, "bubble": bubble, "optimizer": rest}
    # Rounded marks may leave less than nothing of a kind that takes no time.
    return StageSeconds(**{kind: max(0.0, round(seconds, DIGITS)) for kind, seconds in known.items()})
