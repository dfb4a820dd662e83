"""How far apart the clocks of pipeline stages are, from when they began a step and from what they sent each other.

Ranks of one machine have one clock. Those of several begin a step when a collective of the whole job is over, and are
taken to begin it together, but for what could then not be true: that something arrived before it was sent.

    stage 0   F0 sent at 5 |                  |    the end of F0's wait on stage 1 is not before 5, and
    stage 1                | F0 here at 5.1   |    the end of B0's wait on stage 0 is not before B0's end on stage 1
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from train_core.stage_timeline import PassKind, StageTimeline


def offsets(stages: Sequence[StageTimeline]) -> list[float]:
    """For each stage, how many seconds after the earliest one it began the step."""
    late = [0.0]
    for before, after in pairwise(stages):
        late.append(late[-1] + _behind(before, after))
    return [offset - min(late) for offset in late]


def uncertainty(stages: Sequence[StageTimeline]) -> float:
    """Seconds by which two neighbouring stages may be misplaced against each other; 0 on one machine.

    Infinite where nothing was sent between stages of two machines.
    """
    apart = [_bounds(before, after) for before, after in pairwise(stages) if before.machine != after.machine]
    return max((abs(high - low) / 2 for low, high in apart), default=0.0)


def _behind(before: StageTimeline, after: StageTimeline) -> float:
    """By how many seconds a stage began later than the one before it."""
    if before.machine == after.machine:
        return after.began_at - before.began_at
    low, high = _bounds(before, after)
    # Where the two bounds contradict each other, because marks are not exact, the middle is as good as any other.
    return (low + high) / 2 if low > high else min(max(0.0, low), high)


def _bounds(before: StageTimeline, after: StageTimeline) -> tuple[float, float]:
    """The least and the most by which `after` can have begun later, so that nothing arrives before it is sent."""
    low = _earliest(_sent(before, "forward"), _arrived(after, "forward"))
    high = -_earliest(_sent(after, "backward"), _arrived(before, "backward"))
    return low, high


def _earliest(sent: dict[tuple[int, int], float], arrived: dict[tuple[int, int], float]) -> float:
    """By how much the receiver's clock has to be put forward at least."""
    return max((sent[name] - arrived[name] for name in sent.keys() & arrived.keys()), default=-math.inf)


def _sent(stage: StageTimeline, kind: PassKind) -> dict[tuple[int, int], float]:
    return {(each.micro_batch, each.chunk): each.end for each in stage.passes if each.kind == kind}


def _arrived(stage: StageTimeline, kind: PassKind) -> dict[tuple[int, int], float]:
    return {(each.micro_batch, each.chunk): each.arrived for each in stage.passes if each.kind == kind}
