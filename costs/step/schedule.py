"""The time of a pipeline for all micro-batches, from what each of its stages takes for one.

The stages need not be equal. The result is the longest chain of passes that wait for each other. It is a closed form,
so that a search can price thousands of plans at once; tests hold it against a simulation event by event.

Of m micro-batches on p stages, where the slowest stage takes s for one and all stages together w:

    GPipe          (w - s) + m s
    1F1B           as that, but for waits at both ends: `_one_f_one_b`
    interleaved    (w - s) / v + m s, of v chunks a stage; where m < p: w + (m - 1) s / v
    ZB-H1          m s + the waits of the other stages, which weight gradients fill: (F + B - W) each, more where m < p

The bubble is what is left of this after computation and communication of the slowest stage (`step_time.run_pipeline`).

A further schedule needs a formula here, its passes in flight in `in_flight.chunks_in_flight`, the end of its last
backward pass in `step_time`, and in `sweeps.planner.plans` layouts to try (`runnable.all_layouts`) and a bound
(`bounds`); its name is one of `conf.plan.knobs.SCHEDULES`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conf.plan.knobs import SCHEDULES
from costs.setting import Floats, Integers
from costs.stages import StageGroup

ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE, GPIPE = (
    SCHEDULES.index(name) for name in ("1f1b", "interleaved", "zero-bubble", "gpipe")
)


def largest_group(num_micro_batches: Integers, num_stages: Integers) -> Integers:
    """Micro-batches of the first group under interleaving, in columns, (n,); see `conf.plan.chunks.group_sizes`."""
    # There are m // p groups, at least one, as equal as can be; the largest of them is the quotient rounded up.
    return -(-num_micro_batches // _num_groups(num_micro_batches, num_stages))


def smallest_group(num_micro_batches: Integers, num_stages: Integers) -> Integers:
    """Micro-batches of the last group, likewise."""
    return num_micro_batches // _num_groups(num_micro_batches, num_stages)


def _num_groups(num_micro_batches: Integers, num_stages: Integers) -> Integers:
    return np.maximum(1, num_micro_batches // num_stages)


@dataclass(frozen=True, slots=True)
class MicroBatchSeconds:
    """Seconds of one micro-batch on each stage of a group, in columns, (n,)."""

    forward: Floats
    input_gradient: Floats
    weight_gradient: Floats

    @property
    def total(self) -> Floats:
        return self.forward + self.input_gradient + self.weight_gradient


def pipeline_seconds(
    groups: list[StageGroup],
    seconds: list[MicroBatchSeconds],
    num_stages: Integers,
    num_micro_batches: Integers,
    num_chunks: Integers,
    schedule: Integers,
) -> tuple[Floats, Integers]:
    """Seconds from the first forward to the last backward, and the index of the group that sets the pace."""
    p, m = num_stages, num_micro_batches
    totals = [stage.total for stage in seconds]
    # ZB-H1 fills waits with weight gradients; with fewer micro-batches than stages there are not enough for all waits.
    filling = np.minimum(m - 1, p - 1) / np.maximum(p - 1, 1)
    # Equal stages wait (p - 1)(F + B - W) in all, B and W being input and weight gradient (arXiv 2401.10241, table 2).
    # This is one stage's term of that sum.
    waits = [
        np.maximum(stage.forward + stage.input_gradient - filling * stage.weight_gradient, 0.0) for stage in seconds
    ]
    whole, waiting = np.zeros(p.shape), np.zeros(p.shape)
    shares = [group.count * total for group, total in zip(groups, totals, strict=True)]
    for group, share, wait in zip(groups, shares, waits, strict=True):
        whole, waiting = whole + share, waiting + group.count * wait
    taking_turns = layers_waited_for(groups, p, num_chunks)
    before = np.zeros(p.shape)
    longest, slowest = before, np.zeros_like(p)
    for index, (group, stage, total, share, wait) in enumerate(
        zip(groups, seconds, totals, shares, waits, strict=True)
    ):
        # The group itself is included, because the chain is the one through its last stage.
        before = before + share
        pace = m * total
        plain = _one_f_one_b(stage, total, before, whole - before, p - (group.start + group.count - 1), m)
        # The other stages fill and drain around this one, with interleaving by one chunk instead of a whole stage: of
        # equal stages that is m (F + B) + (p - 1)(F + B) / v (arXiv 2104.04473, section 2.2, B both gradients). With
        # fewer micro-batches than stages, each comes round all stages before a stage can go on with its next chunk.
        filled = (whole - total) / num_chunks + pace  # GPipe has one chunk
        filled = np.where((num_chunks > 1) & (m < p), whole + (m - 1) * total / num_chunks, filled)
        if taking_turns is not None:
            # A stage's time over its layers is the time of one layer, forward and backward.
            filled = filled + m * taking_turns * total / np.maximum(group.layers, 1)
        # Under ZB-H1 one micro-batch's waits on all other stages come on top of this stage's own passes.
        chain = np.where(schedule == ZERO_BUBBLE, waiting - wait + pace, filled)
        chain = np.where(schedule == ONE_F_ONE_B, plain, chain)
        if index == 0:  # the first stage's group is never empty
            longest = chain
            continue
        longer = (group.count > 0) & (chain > longest)
        longest, slowest = np.where(longer, chain, longest), np.where(longer, index, slowest)
    return longest, slowest


SLACK_PASSES = 2
"""By so many passes neighbouring stages may be apart: one forward, one backward."""


def layers_waited_for(groups: list[StageGroup], num_stages: Integers, num_chunks: Integers) -> Floats | None:
    """Layers by which every micro-batch takes longer where inner stages are cut into uneven chunks; None if none are.

    A stage's heavier chunk is at work for as many passes as a group has micro-batches, one pass later on every further
    stage, forward as backward. Neighbouring stages may be SLACK_PASSES passes apart, in which their heavier chunks do
    not meet; in each further pass all stages wait for the time of a layer.
    """
    uneven = [np.where(group.layers % num_chunks > 0, group.count, 0) for group in groups]
    inner = sum(np.where(group.is_first | group.is_last, 0, count) for group, count in zip(groups, uneven, strict=True))
    if not np.any(inner):
        return None
    passes = np.maximum(sum(uneven) - 1 - SLACK_PASSES, 0)
    # A group of as many micro-batches as stages waits so often once, of which each micro-batch bears its share.
    return np.where(inner > 0, passes, 0) / num_stages


def _one_f_one_b(
    stage: MicroBatchSeconds, total: Floats, before: Floats, after: Floats, opening: Integers, m: Integers
) -> Floats:
    """The longest chain through one stage, with the stages before it filling and draining around it.

    In a group of equal stages, it is the last one's. The stage runs `opening` forward passes before it alternates, and
    as many backward passes in the end; with few micro-batches, it runs all of them so. All but one of these forward
    passes run while the first micro-batch is in the later stages, which take `after` for it both ways, since its
    backward pass has to return first; the backward passes likewise run beside the last micro-batch. With so few
    micro-batches that no stage alternates, the same chain cannot wait at its begin and at its end.
    """
    num = np.minimum(m, opening)
    others = num - 1
    forwards, backwards = others * stage.forward, others * (total - stage.forward)
    # With m > opening both ends last as long as their passes or as `after`, whichever is longer, in whatever order the
    # two are added up; else one wait takes the place of the shorter end, which leaves the longer chain.
    filled = np.maximum(np.minimum(forwards, backwards), after)
    drained = np.maximum(np.maximum(forwards, backwards), np.where(m > opening, after, 0.0))
    # The stage's m micro-batches are one in `before`, `others` in the two ends, and m - num that alternate between
    # them. Without waits that is before + (m - 1) x total, and for p equal stages (m + p - 1)(F + B).
    return before + (m - num) * total + (filled + drained)
