"""Memory under interleaving, where some chunks of a stage have a layer more, and some groups a micro-batch more.

Which chunks are in flight changes from pass to pass, so that it matters which are the heavier ones. Groups of
micro-batches go forward through chunk after chunk and backward through the last chunk first: with G micro-batches in a
group, v chunks of which h are heavier, and N passes ahead,

    heavier in flight after B backward passes = heavier among the first B + N forward passes - those among the first B
"""

from __future__ import annotations

import numpy as np

from train_core.costs.setting import Booleans, Integers, Plans, by_distinct
from train_core.costs.stages import StageGroup
from train_core.costs.step.priced_stage import PricedStage
from train_core.costs.step.schedule import largest_group


def more_in_uneven_chunks(
    stage: PricedStage, in_flight: Integers, most_heavier: Integers, average_bytes: Integers
) -> Integers:
    """Bytes that the layers of all chunks in flight keep at the fullest moment, beyond those of average chunks.

    They can be fewer.

    Args:
        most_heavier: as `heavier_in_flight` counts them.
    """
    chunks = stage.plans.virtual_pipeline_size
    each, heavier = stage.group.layers // chunks, stage.group.layers % chunks
    light = _kept_by(stage, each)
    more = _kept_by(stage, each + 1) - light
    kept = in_flight * light + most_heavier * more
    return np.where(heavier > 0, kept - in_flight * average_bytes, 0)


def heavier_in_flight(plans: Plans, group: StageGroup, heavier: Integers, in_flight: Integers) -> Integers:
    """The most chunks with a layer more that are in flight at once.

    The heavier chunks come last on the first stage and first on the others (`conf.chunks`). The number grows until they
    have gone forward, and falls while they go backward, so that it is greatest where the one ends or the other begins.
    The last stage is fullest at the loss, when all heavier chunks of a group have gone forward and none backward.

    Args:
        heavier: how many chunks of the stage have a layer more.
        in_flight: how many chunks are in flight at most; it stays so until the last forward pass.

    Chunks come in periods of `size * v`, of which a `run` of `size * heavier` is of heavier chunks: the first in the
    period on all stages but the first, the last in it (`is_late`) on the first stage, whose embedding makes a chunk
    lighter. Which chunks are in flight changes by one at a time, so that the most heavier ones are there where a run
    begins or ends; these are the two `moments`, in chunks done.
    """
    size, v = largest_group(plans.num_micro_batches, plans.pipeline_parallel_size), plans.virtual_pipeline_size
    period, run, is_first = size * v, size * heavier, group.is_first
    last = np.maximum(plans.num_micro_batches * v - in_flight, 0)
    moments = np.where(is_first, period, run) - in_flight, np.where(is_first, 0, period - run)
    counted = []
    for done in (np.minimum(moment % period, last) for moment in moments):
        forward = _among_first(done + in_flight, period, run, is_late=is_first)
        counted.append(forward - _among_first(done, period, run, is_late=~is_first))
    one, other = counted
    most: Integers = np.where(group.is_last, run, np.maximum(one, other))
    return most


def losses_of_smaller_groups(plans: Plans) -> Integers:
    """Losses that wait on the last stage in groups with a micro-batch less than the first one has.

    As many passes are ahead there as the first group needs, which is one more for each chunk but the last.
    """
    groups = np.maximum(1, plans.num_micro_batches // plans.pipeline_parallel_size)
    smaller, fuller = plans.num_micro_batches // groups, plans.num_micro_batches % groups
    waiting: Integers = np.where(fuller > 0, np.minimum(plans.virtual_pipeline_size - 1, smaller - 1), 0)
    return waiting


def _among_first(passes: Integers, period: Integers, run: Integers, *, is_late: Booleans) -> Integers:
    """Heavier chunks among so many passes in one direction, where those of each period come late, or else early."""
    among: Integers = passes // period * run + np.clip(passes % period - np.where(is_late, period - run, 0), 0, run)
    return among


def _kept_by(stage: PricedStage, layers: Integers) -> Integers:
    """Bytes that so many layers of one chunk keep, of which every n-th recomputes."""
    work = stage.work
    repeating = by_distinct(stage.plans, "recompute_every", lambda fewer: -(-layers // fewer.recompute_every))
    kept: Integers = repeating * work.layer.kept_bytes + (layers - repeating) * work.plain_layer.kept_bytes
    return kept
