"""What is rehearsed of a step, and what was counted in it. No torch.

The micro-batches that show everything are taken, and the stages that differ.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import Annotated, TypeAlias

from pydantic import Field

from conf.plan.experiment import Experiment
from conf.types.schema import Frozen
from costs.counts.traffic import GroupTraffic
from costs.terms import HeldBytes
from train_core.parallel.schedules import Action, actions_of

StageBytes: TypeAlias = HeldBytes[int]
"""Bytes on one rank at the fullest moment of a step."""


class StageStep(Frozen):
    """One step of the first rank of a stage.

    Attributes:
        flops: of its matrix products, recomputation included, attention over the full square.
    """

    stage: int
    num_layers: int
    memory: StageBytes
    flops: int
    traffic: Annotated[tuple[GroupTraffic, ...], Field(strict=False)]


class Rehearsal(Frozen):
    """One step of the real trainer, rehearsed on fake tensors: counted, neither measured nor predicted.

    Attributes:
        stages: the first rank of every pipeline stage.
        flops: of all ranks; every tensor rank and replica of a stage computes as much as its first rank.
        num_rehearsed: stages that were rehearsed; the others do exactly what one of these does.
    """

    label: str
    world_size: int
    num_micro_batches: int
    flops: int
    stages: Annotated[tuple[StageStep, ...], Field(strict=False)]
    num_rehearsed: int


ENDS_AND_ONE = 3
"""The first micro-batch, the last, and one between them that shows what every further one adds."""


def enough_micro_batches(experiment: Experiment, stage: int) -> int:
    """The number of micro-batches that lets this stage hold as many at once as it ever does, and one more.

    Interleaved schedules take micro-batches by groups, so that there it is a group more. Where groups differ, all are
    taken.
    """
    group, m = group_size(experiment), experiment.num_micro_batches
    if m % group:
        return m
    most = _most_in_flight(actions_of(experiment, stage))
    for few in range(group, m, group):
        if _most_in_flight(actions_of(with_micro_batches(experiment, few), stage)) == most:
            return min(m, max(few + group, ENDS_AND_ONE * group))
    return m


def group_size(experiment: Experiment) -> int:
    """The number of micro-batches that a schedule takes together, group after group."""
    parallel = experiment.parallel
    return parallel.pipeline_parallel_size if parallel.schedule == "interleaved" else 1


def with_micro_batches(experiment: Experiment, num_micro_batches: int) -> Experiment:
    sequences = num_micro_batches * experiment.batch.micro_batch_size * experiment.data_parallel_size
    batch = experiment.batch.model_copy(update={"global_batch_size": sequences})
    return experiment.model_copy(update={"batch": batch})


def what_it_does(experiment: Experiment, stage: int) -> Hashable:
    """A value that is equal for stages whose first ranks do the same passes in the same order over as many layers."""
    last = experiment.parallel.pipeline_parallel_size - 1
    actions = actions_of(with_micro_batches(experiment, enough_micro_batches(experiment, stage)), stage)
    dense = sum(
        layer < experiment.model.num_dense_layers for layers in experiment.chunk_ranges[stage] for layer in layers
    )
    return experiment.layers_per_stage[stage], dense, stage == 0, stage == last, tuple(actions)


def _most_in_flight(actions: Sequence[Action]) -> int:
    """The most forward passes whose activations wait at the same time for the last of their backward passes."""
    ends = "weight" if any(action.kind == "weight" for action in actions) else "backward"
    return max(accumulate((action.kind == "forward") - (action.kind == ends) for action in actions))
