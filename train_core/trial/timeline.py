"""The times of one pipeline stage's passes in one timed step, as a rank of that stage recorded it. No torch here."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from conf.types.schema import Count, Frozen, Positive

MOST_PASSES = 4000
"""Of all stages together; a stage keeps its share of them, its first and its last ones in equal numbers."""
MOST_WAITS = 64
"""Of those that follow the last pass; there are a few for each bucket of gradients."""

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PassKind = Literal["forward", "backward", "weight"]


class RecordedPass(NamedTuple):
    """A micro-batch's pass through a model chunk, in seconds since its rank began the step.

    Attributes:
        arrived: when what another stage sends had come; where none does, when the pass began.
        input_wait: seconds that it waited for that, its travel included.
        communication: seconds of all other waits in it, such as those of the tensor axis.
    """

    kind: PassKind
    micro_batch: int
    chunk: int
    start: Seconds
    end: Seconds
    arrived: Seconds
    input_wait: Seconds
    communication: Seconds


class RecordedWait(NamedTuple):
    """A wait after the last pass: for the ranks of the axis `line`, in seconds since the rank began the step."""

    line: str
    start: Seconds
    end: Seconds


class StageSeconds(Frozen):
    """The parts of a rank's step, over all of its passes, also those that are not listed.

    Attributes:
        bubble: waits for another stage, and for the whole job before the update.
        communication: waits of passes for the ranks of other axes, and for the sums of gradients after the last pass.
        optimizer: the rest of the step, which is the update and whatever goes before the first pass.
    """

    forward: Seconds
    backward: Seconds
    weight_gradient: Seconds
    communication: Seconds
    optimizer: Seconds
    bubble: Seconds


class StageTimeline(Frozen):
    """`timeline/stage-N.json`: what the first tensor rank of the first replica did in one timed step.

    Attributes:
        step: of the latest timed steps the one whose time came nearest to the median of all; the same on all stages.
        step_seconds: its time, on the slowest rank of the job.
        machine: equal for ranks whose clocks are one.
        began_at: when the rank began the step, by its machine's clock.
        num_passes: how many it ran; only the first and the last ones are in `passes` where these are fewer.
        after: waits after the last pass, likewise the first ones alone.
        ended: when the rank had made its update.
    """

    stage: Annotated[int, Field(ge=0)]
    num_stages: Count
    rank: Annotated[int, Field(ge=0)]
    step: Count
    step_seconds: Positive
    machine: str
    began_at: Seconds
    num_passes: Count
    passes: Annotated[tuple[RecordedPass, ...], Field(strict=False, min_length=1)]
    after: Annotated[tuple[RecordedWait, ...], Field(strict=False)]
    ended: Positive
    seconds: StageSeconds

    @property
    def is_cut(self) -> bool:
        return len(self.passes) < self.num_passes


def most_of_a_stage(num_stages: int) -> int:
    return max(2, MOST_PASSES // num_stages // 2 * 2)
