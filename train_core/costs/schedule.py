"""How long a pipeline takes for all micro-batches, from what each of its stages takes for one.

The stages need not be equal. The result is the longest chain of passes that wait for each other, which tests hold
against a simulation event by event.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from train_core.costs.setting import SCHEDULES, Floats, Integers
from train_core.costs.stages import StageGroup

ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE, GPIPE = (
    SCHEDULES.index(name) for name in ("1f1b", "interleaved", "zero-bubble", "gpipe")
)


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """Seconds of one micro-batch on each stage of a group, in columns, (n,)."""

    forward: Floats
    input_gradient: Floats
    weight_gradient: Floats

    @property
    def total(self) -> Floats:
        return self.forward + self.input_gradient + self.weight_gradient


def pipeline_seconds(
    groups: list[StageGroup],
    seconds: list[StageSeconds],
    num_stages: Integers,
    num_micro_batches: Integers,
    num_chunks: Integers,
    schedule: Integers,
) -> tuple[Floats, Integers]:
    """Seconds from the first forward to the last backward, and the index of the group that sets the pace."""
    m = num_micro_batches
    totals = [stage.total for stage in seconds]
    waits = [np.maximum(stage.forward + stage.input_gradient - stage.weight_gradient, 0.0) for stage in seconds]
    whole, waiting = np.zeros(num_stages.shape), np.zeros(num_stages.shape)
    for group, total, wait in zip(groups, totals, waits, strict=True):
        whole, waiting = whole + group.count * total, waiting + group.count * wait
    before = np.zeros(num_stages.shape)
    longest, slowest = np.full(num_stages.shape, -1.0), np.zeros_like(num_stages)
    for index, (group, stage, total, wait) in enumerate(zip(groups, seconds, totals, waits, strict=True)):
        before = before + group.count * total
        pace = m * total
        plain = _one_f_one_b(group, stage, before - total, whole - before, num_stages, m)
        filled = (whole - total) / num_chunks + pace  # GPipe has one chunk
        chain = np.where(schedule == ZERO_BUBBLE, waiting - wait + pace, filled)
        chain = np.where(schedule == ONE_F_ONE_B, plain, chain)
        longer = (group.count > 0) & (chain > longest)
        longest, slowest = np.where(longer, chain, longest), np.where(longer, index, slowest)
    return longest, slowest


def _one_f_one_b(
    group: StageGroup, stage: StageSeconds, before: Floats, after: Floats, num_stages: Integers, m: Integers
) -> Floats:
    """The chain through the last stage of a group: filled by those before it, then busy without a gap.

    A stage with k others after it starts k + 1 forwards before its first backward, which returns at the earliest when
    the first of them has passed all later stages both ways; then it alternates, and the stages before it drain.
    """
    warmup = np.minimum(m, num_stages - (group.start + np.maximum(group.count, 1) - 1))
    first_return = np.maximum(warmup * stage.forward, stage.forward + after)
    backward = stage.input_gradient + stage.weight_gradient
    chain: Floats = before + first_return + (m - warmup) * stage.forward + m * backward
    return chain
