"""Forward passes whose backward a stage has not finished, when it has most of them, and the uneven chunks among them.

Where chunks are uneven, which of them are in flight changes from pass to pass, so that it matters which are the heavier
ones. Groups of micro-batches go forward through chunk after chunk and backward through the last chunk first: with G
micro-batches in a group, v chunks of which h are heavier, and N passes ahead,

    heavier in flight after B backward passes = heavier among the first B + N forward passes - those among the first B
"""

from __future__ import annotations

import numpy as np

from conf.plan.knobs import SCHEDULES
from costs.setting import Booleans, Integers, Plans
from costs.stages import StageGroup
from costs.step.schedule import largest_group, smallest_group

NO_LIMIT = np.iinfo(np.int64).max  # GPipe has no limit of its own; the number of micro-batches is the limit


def chunks_in_flight(plans: Plans, stage: Integers) -> Integers:
    """Forward passes of model chunks whose backward a stage has not finished; without interleaving a chunk is a stage.

    Source: arXiv 2104.04473, section 2.2 (GPipe, 1F1B, interleaved); arXiv 2401.10241, section 2.2: ZB-H1 defers
    weight gradients until every stage holds as many as the first.
    """
    p, v = plans.pipeline_parallel_size, plans.virtual_pipeline_size
    # Stage r runs p - r forward passes before its first backward pass. Under interleaving the warm-up of Megatron-LM's
    # schedules.py is 2 (p - r - 1) + (v - 1) x group, and one more forward pass comes before the first backward pass.
    later, group = p - stage, largest_group(plans.num_micro_batches, p)
    most = {
        "1f1b": later,
        "gpipe": np.asarray(NO_LIMIT),
        "interleaved": 2 * (later - 1) + (v - 1) * group + 1,
        "zero-bubble": p,
    }
    return np.minimum(np.choose(plans.schedule, [most[name] for name in SCHEDULES]), plans.num_micro_batches * v)


def heavier_in_flight(plans: Plans, group: StageGroup, heavier: Integers, in_flight: Integers) -> Integers:
    """The most chunks with a layer more that are in flight at once.

    The heavier chunks come last on the first stage and first on the others (`conf.plan.chunks`). The number grows until
    they have gone forward, and falls while they go backward, so that it is greatest where the one ends or the other
    begins. The last stage is fullest at the loss, when all heavier chunks of a group have gone forward
    and none backward.

    Args:
        heavier: how many chunks of the stage have a layer more.
        in_flight: how many chunks are in flight at most; it stays so until the last forward pass.

    Chunks come in periods of `size * v`, of which a `run` of `size * heavier` is of heavier chunks: the first in the
    period on all stages but the first, the last in it (`is_late`) on the first stage, whose embedding makes a chunk
    lighter. Where chunks are uneven, which of them are in flight changes by one at a time, so that the most heavier
    ones are there where a run begins or ends; these are the two `moments`, in chunks done.
    """
    size, v = largest_group(plans.num_micro_batches, plans.pipeline_parallel_size), plans.virtual_pipeline_size
    period, run, is_first = size * v, size * heavier, group.is_first
    last = np.maximum(plans.num_micro_batches * v - in_flight, 0)
    # At the first moment forward passes, in_flight further on, end a run; at the second, backward passes begin one.
    # Chunks go backward in the opposite order, so that a run which is early forward is late backward.
    moments = np.where(is_first, period, run) - in_flight, np.where(is_first, 0, period - run)
    counted = []
    # Every period is alike; after the last forward pass fewer and fewer chunks are in flight, so that no later moment
    # counts.
    for done in (np.minimum(moment % period, last) for moment in moments):
        forward = _heavier_among_first(done + in_flight, period, run, is_late=is_first)
        counted.append(forward - _heavier_among_first(done, period, run, is_late=~is_first))
    one, other = counted
    return np.where(group.is_last, run, np.maximum(one, other))


def losses_of_smaller_groups(plans: Plans) -> Integers:
    """Losses that wait on the last stage in groups with a micro-batch less than the first one has.

    As many passes are ahead there as the first group needs, which is one more for each chunk but the last.
    """
    m, p = plans.num_micro_batches, plans.pipeline_parallel_size
    smallest = smallest_group(m, p)
    return np.where(smallest < largest_group(m, p), np.minimum(plans.virtual_pipeline_size - 1, smallest - 1), 0)


def _heavier_among_first(passes: Integers, period: Integers, run: Integers, *, is_late: Booleans) -> Integers:
    """Heavier chunks among so many passes in one direction, where those of each period come late, or else early."""
    # Each whole period has a run in it, and the one that has begun has what of its run is done.
    return passes // period * run + np.clip(passes % period - np.where(is_late, period - run, 0), 0, run)
