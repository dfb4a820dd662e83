"""The mesh: which coordinates a rank has on the pipeline, data and tensor axes, and its process group on each.

    rank = (pipeline * data_size + data) * tensor_size + tensor

Tensor is the fastest axis, so that tensor groups are neighbours inside a node; the ranks of a stage are consecutive.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch.distributed as dist

from conf.schema import Experiment
from train_core.collectives import Axis


@dataclass(frozen=True)
class Layout:
    """Sizes of the three axes, and the arithmetic between ranks and coordinates. No process group needed."""

    tensor_size: int
    pipeline_size: int
    data_size: int

    @classmethod
    def of(cls, experiment: Experiment) -> Layout:
        parallel = experiment.parallel
        return cls(parallel.tensor_parallel_size, parallel.pipeline_parallel_size, experiment.data_parallel_size)

    @property
    def world_size(self) -> int:
        return self.tensor_size * self.pipeline_size * self.data_size

    def rank(self, pipeline: int, data: int, tensor: int) -> int:
        return (pipeline * self.data_size + data) * self.tensor_size + tensor

    def coordinates(self, rank: int) -> tuple[int, int, int]:
        """(pipeline, data, tensor)."""
        rest, tensor = divmod(rank, self.tensor_size)
        pipeline, data = divmod(rest, self.data_size)
        return pipeline, data, tensor


@dataclass(frozen=True)
class Channel:
    """One direction of traffic between two neighbouring stages.

    Activations and gradients have a group each: one group for both would serialise the two directions between a pair of
    stages, and could deadlock where sends wait for receives.
    """

    peer: int
    group: dist.ProcessGroup | None


@dataclass(frozen=True)
class Mesh:
    """Where this rank stands.

    Attributes:
        embedding: joins the first and the last stage, which both hold the tied token embedding; size 1 elsewhere.
        activations_in: from the stage before; gradients_in from the one after. None at the ends of the pipeline.
    """

    layout: Layout
    world: Axis
    tensor: Axis
    pipeline: Axis
    data: Axis
    embedding: Axis
    activations_in: Channel | None = field(default=None)
    activations_out: Channel | None = field(default=None)
    gradients_in: Channel | None = field(default=None)
    gradients_out: Channel | None = field(default=None)

    @property
    def is_first_stage(self) -> bool:
        return self.pipeline.rank == 0

    @property
    def is_last_stage(self) -> bool:
        return self.pipeline.rank == self.pipeline.size - 1


def build_mesh(layout: Layout, rank: int) -> Mesh:
    """Create this rank's groups. Every rank of the world calls this, in a world that has been joined.

    Only members take part in creating a group, so that the cost does not grow with the world. Torch names such a group
    after its ranks and the number of groups that the process has made before, so all ranks make the same kinds in the
    same order, and only the embedding's, which not all have, comes last.
    """
    p, d, t = layout.coordinates(rank)
    size = layout.pipeline_size
    stages = [layout.rank(pipeline, d, t) for pipeline in range(size)]
    tensor_axis = _axis([layout.rank(p, d, tensor) for tensor in range(layout.tensor_size)], rank)
    data_axis = _axis([layout.rank(p, data, t) for data in range(layout.data_size)], rank)
    activations, gradients = _group(stages), _group(stages)
    before = stages[p - 1] if p > 0 else None
    after = stages[p + 1] if p + 1 < size else None
    return Mesh(
        layout=layout,
        world=Axis(layout.world_size, rank, None),
        tensor=tensor_axis,
        pipeline=Axis(size, p, None),
        data=data_axis,
        embedding=_axis([stages[0], stages[-1]], rank) if size > 1 and p in (0, size - 1) else Axis(),
        activations_in=_channel(before, activations),
        activations_out=_channel(after, activations),
        gradients_in=_channel(after, gradients),
        gradients_out=_channel(before, gradients),
    )


def _axis(ranks: list[int], rank: int) -> Axis:
    return Axis(len(ranks), ranks.index(rank), _group(ranks))


def _group(ranks: list[int]) -> dist.ProcessGroup | None:
    if len(ranks) == 1:
        return None
    group: dist.ProcessGroup = dist.new_group(ranks, use_local_synchronization=True)
    return group


def _channel(peer: int | None, group: dist.ProcessGroup | None) -> Channel | None:
    return None if peer is None else Channel(peer, group)
