"""Pipeline schedules as data: the order in which one stage runs its passes, from which everything else follows.

1F1B on two stages with four micro-batches (F forward, B backward, which takes twice as long, .. waits):

    stage 0    F0 F1 .. .. B0 B0 F2 B1 B1 F3 B2 B2 .. B3 B3
    stage 1    .. F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .. ..

With v model chunks on each of p stages, chunk c of stage r is the (c p + r)-th part of the model, so that a micro-batch
goes round all stages v times. Neighbouring stages run their passes of one direction in one order, which is why nothing
that is sent between them needs a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

from conf.plan.chunks import group_sizes
from conf.plan.experiment import Experiment


class Action(NamedTuple):
    """One pass of a micro-batch through a model chunk of this stage.

    Attributes:
        kind: `backward` computes all gradients, or only those of activations where a `weight` action of the same
            micro-batch and chunk follows, which then computes those of the weights.
    """

    kind: Literal["forward", "backward", "weight"]
    micro_batch: int
    chunk: int = 0


def actions_of(experiment: Experiment, stage: int) -> list[Action]:
    """The actions of one stage in one step, in order."""
    parallel, m = experiment.parallel, experiment.num_micro_batches
    p, v = parallel.pipeline_parallel_size, parallel.virtual_pipeline_size
    match parallel.schedule:
        case "gpipe":
            return gpipe(m)
        case "1f1b":
            return one_forward_one_backward(p, stage, m)
        case "interleaved":
            return interleaved(p, stage, m, v)
        case "zero-bubble":
            return zero_bubble(p, stage, m)


def forward_only(experiment: Experiment, num_micro_batches: int) -> list[Action]:
    """The actions of an evaluation, the same on every stage."""
    parallel = experiment.parallel
    return _forwards(parallel.pipeline_parallel_size, num_micro_batches, parallel.virtual_pipeline_size)


def gpipe(num_micro_batches: int) -> list[Action]:
    """All forward passes, then all backward passes; every micro-batch is in flight. Source: arXiv 1811.06965."""
    forwards = _forwards(1, num_micro_batches, 1)
    # With all of them ahead no backward pass comes before the last forward pass.
    return _alternating(forwards, forwards, num_micro_batches)


def one_forward_one_backward(num_stages: int, stage: int, num_micro_batches: int) -> list[Action]:
    """1F1B: fill the pipeline, then alternate, then drain; at most num_stages - stage micro-batches in flight.

    Source: arXiv 2104.04473, section 2.2.1.
    """
    forwards = _forwards(num_stages, num_micro_batches, 1)
    # Ahead by the stages behind: a micro-batch goes through them before its first gradient can come back.
    return _alternating(forwards, forwards, num_stages - stage - 1)


def interleaved(num_stages: int, stage: int, num_micro_batches: int, num_chunks: int) -> list[Action]:
    """1F1B over model chunks: micro-batches go round in groups, backward through the last chunk first.

    `conf.plan.chunks.group_sizes` says how large the groups are.

    Source: arXiv 2104.04473, section 2.2.2, in the order of Megatron-LM's
    `forward_backward_pipelining_with_interleaving`.
    """
    forwards = _forwards(num_stages, num_micro_batches, num_chunks)
    # Ahead are two passes for each stage behind this one, since a micro-batch goes there and its gradient comes back,
    # and the first group for each chunk but the last, which has to be passed before the first backward pass can begin.
    # No later group is larger, so that this is enough for those too.
    backwards = [action._replace(chunk=num_chunks - 1 - action.chunk) for action in forwards]
    first_group = group_sizes(num_micro_batches, num_stages)[0]
    return _alternating(forwards, backwards, 2 * (num_stages - stage - 1) + (num_chunks - 1) * first_group)


def zero_bubble(num_stages: int, stage: int, num_micro_batches: int) -> list[Action]:
    """ZB-H1: 1F1B that puts weight gradients off, to compute them where a stage would otherwise wait.

    A stage puts them off by as many micro-batches as there are stages before it. A micro-batch is in flight until its
    weight gradients are done, so that every stage has num_stages of them in flight.

    Source: arXiv 2401.10241, section 2.2.
    """
    actions: list[Action] = []
    for action in one_forward_one_backward(num_stages, stage, num_micro_batches):
        actions.append(action)
        if action.kind == "backward" and action.micro_batch >= stage:
            actions.append(Action("weight", action.micro_batch - stage))
    # Those that are still put off after the last backward pass, when nothing else is left to fill the time.
    deferred = range(max(0, num_micro_batches - stage), num_micro_batches)
    return actions + [Action("weight", index) for index in deferred]


def _forwards(num_stages: int, num_micro_batches: int, num_chunks: int) -> list[Action]:
    """A group of micro-batches goes through chunk after chunk, then the next group."""
    sizes = group_sizes(num_micro_batches, num_stages)
    return [
        Action("forward", stop - size + index, chunk)
        for stop, size in zip(accumulate(sizes), sizes, strict=True)
        for chunk in range(num_chunks)
        for index in range(size)
    ]


def _alternating(forwards: Sequence[Action], backwards: Sequence[Action], num_ahead: int) -> list[Action]:
    """Some forward passes ahead, then a backward pass after each further one, then the remaining backward passes."""
    num_ahead = min(num_ahead, len(forwards))
    actions = list(forwards[:num_ahead])
    for index, backward in enumerate(backwards):
        # A slice, which is empty once all forward passes are done and only backward passes are left.
        actions += forwards[num_ahead + index : num_ahead + index + 1]
        actions.append(backward._replace(kind="backward"))
    return actions
