"""One step of a pipeline in time, rank after rank of one pipeline group: what each does when, as predicted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from conf.plan.experiment import Experiment
from train_core.costs import Implementation
from train_core.costs.pass_seconds import PassSeconds, StageTimes, stage_times
from train_core.parallel.schedules import Action, TimedAction, action_times, actions_of

Kind = Literal["forward", "backward", "weight gradient", "communication", "optimizer", "slowest device", "bubble"]
WORK: tuple[Kind, ...] = ("forward", "backward", "weight gradient", "optimizer")
WAITS: tuple[Kind, ...] = ("bubble", "slowest device")
SPAN_KINDS: tuple[Kind, ...] = get_args(Kind)
LEAST_SHARE = 1e-6
"""A share of the step: spans that are shorter come from rounding."""


class StageSpan(NamedTuple):
    """The thing that one rank does from one second of the step to another.

    Attributes:
        micro_batch: the one that is worked on; None after the pipeline.
    """

    stage: int
    kind: Kind
    start: float
    end: float
    micro_batch: int | None = None
    chunk: int = 0


@dataclass(frozen=True)
class PipelineStep:
    """A step of one rank of every stage.

    Attributes:
        spans: for each stage, what its rank does, first to last.
        sums: for each stage, how long its rank does a kind of thing, over the whole step.
        filled_seconds: until the first stage has its first gradient, when the pipeline is full.
        pipeline_seconds: until the last backward pass.
        unlisted: from when to when the spans of a recorded step have gaps, because it had too many to be written down.
    """

    spans: tuple[tuple[StageSpan, ...], ...]
    sums: tuple[Mapping[Kind, float], ...]
    filled_seconds: float
    pipeline_seconds: float
    unlisted: tuple[float, float] | None = None

    @property
    def num_stages(self) -> int:
        return len(self.spans)

    @property
    def total_seconds(self) -> float:
        return max(of_stage[-1].end for of_stage in self.spans)

    def seconds(self, stage: int, kind: Kind) -> float:
        """The seconds for which the rank of a stage does a kind of thing in the step."""
        return self.sums[stage].get(kind, 0.0)

    def share(self, stage: int, *kinds: Kind) -> float:
        """The part of the step in which the rank of a stage does things of these kinds."""
        return sum(self.seconds(stage, kind) for kind in kinds) / self.total_seconds

    def mean_share(self, *kinds: Kind) -> float:
        """The same part over the ranks of all stages."""
        return sum(self.share(stage, *kinds) for stage in range(self.num_stages)) / self.num_stages


def predicted_step(experiment: Experiment, implementation: Implementation) -> PipelineStep:
    """The passes of the schedule that the trainer runs, each as long as the cost model says, and what follows them.

    Args:
        experiment: each rank is taken to have a device of its own.
    """
    stages = stage_times(experiment, implementation)
    is_split = experiment.parallel.schedule == "zero-bubble"

    def seconds_of(stage: int, action: Action) -> float:
        return sum(_parts(stages[stage].chunks[action.chunk], action, is_split))

    timed = action_times([actions_of(experiment, stage) for stage in range(len(stages))], seconds_of)
    ends = [of_stage[-1].end for of_stage in timed]
    # All ranks add up the norm of the gradients before they update, so none begins before the last one has reduced.
    reduced = max(end + stage.reduction for end, stage in zip(ends, stages, strict=True))
    updated = reduced + max(stage.update for stage in stages)
    total = updated + stages[0].slowest_device
    spans = tuple(
        tuple(_fill_with_bubbles(_spans_of(stage, of_stage, stages[stage], is_split, reduced, updated), stage, total))
        for stage, of_stage in enumerate(timed)
    )
    first_gradient = next(entry.end for entry in timed[0] if entry.action.kind == "backward")
    return PipelineStep(spans, tuple(map(_sums, spans)), first_gradient, max(ends))


def _sums(spans: Sequence[StageSpan]) -> dict[Kind, float]:
    seconds: dict[Kind, float] = defaultdict(float)
    for span in spans:
        seconds[span.kind] += span.end - span.start
    return dict(seconds)


def _parts(seconds: PassSeconds, action: Action, is_split: bool) -> tuple[float, float]:
    """Work of an action, and the communication that is drawn at its end."""
    match action.kind:
        case "forward":
            return seconds.forward, seconds.forward_communication
        case "weight":
            return seconds.weight_gradient, 0.0
        case _:
            deferred = 0.0 if is_split else seconds.weight_gradient
            return seconds.input_gradient + deferred, seconds.backward_communication


def _spans_of(
    stage: int, timed: Sequence[TimedAction], times: StageTimes, is_split: bool, reduced: float, updated: float
) -> Iterator[StageSpan]:
    for action, start, end in timed:
        kind: Kind = "weight gradient" if action.kind == "weight" else action.kind
        between = end - _parts(times.chunks[action.chunk], action, is_split)[1]
        yield StageSpan(stage, kind, start, between, action.micro_batch, action.chunk)
        yield StageSpan(stage, "communication", between, end, action.micro_batch, action.chunk)
    last = timed[-1].end
    yield StageSpan(stage, "communication", last, last + times.reduction)
    yield StageSpan(stage, "optimizer", reduced, reduced + times.update)
    yield StageSpan(stage, "slowest device", updated, updated + times.slowest_device)


def _fill_with_bubbles(spans: Iterator[StageSpan], stage: int, total: float) -> Iterator[StageSpan]:
    """The spans that last, with a bubble wherever the rank has nothing to do."""
    at, least = 0.0, LEAST_SHARE * total
    for span in spans:
        if span.end - span.start <= least:
            continue
        if span.start - at > least:
            yield StageSpan(stage, "bubble", at, span.start)
        yield span
        at = span.end
    if total - at > least:
        yield StageSpan(stage, "bubble", at, total)
