"""The mesh: which coordinates a rank has on the pipeline, data and tensor axes, and its process group on each.

    rank = (pipeline * data_size + data) * tensor_size + tensor

Tensor is the fastest axis, so that tensor groups are neighbours inside a node; the ranks of a stage are consecutive.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

from conf.experiment import Experiment
from train_core.clock import Clock, Line
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

    def tensor_group(self, rank: int) -> list[int]:
        """The ranks that share this rank's other two coordinates; likewise for the other axes."""
        p, d, _ = self.coordinates(rank)
        return [self.rank(p, d, tensor) for tensor in range(self.tensor_size)]

    def data_group(self, rank: int) -> list[int]:
        p, _, t = self.coordinates(rank)
        return [self.rank(p, data, t) for data in range(self.data_size)]

    def pipeline_group(self, rank: int) -> list[int]:
        """One rank of every stage, first to last."""
        _, d, t = self.coordinates(rank)
        return [self.rank(pipeline, d, t) for pipeline in range(self.pipeline_size)]


@dataclass(frozen=True)
class Channel:
    """One direction of traffic between two neighbouring stages.

    Activations and gradients have a group each: one group for both would serialise the two directions between a pair of
    stages, and could deadlock where sends wait for receives.
    """

    peer: int
    group: dist.ProcessGroup | None
    line: Line


@dataclass(frozen=True)
class Mesh:
    """Where this rank stands.

    Attributes:
        clock: is told of every wait on the axes and channels.
        embedding: joins the first and the last stage, which both hold the tied token embedding; size 1 elsewhere.
        activations_in: from the stage before; gradients_in from the one after. None at the ends of the pipeline.
    """

    layout: Layout
    clock: Clock
    world: Axis
    tensor: Axis
    pipeline: Axis
    data: Axis
    embedding: Axis
    activations_in: Channel | None = None
    activations_out: Channel | None = None
    gradients_in: Channel | None = None
    gradients_out: Channel | None = None

    @property
    def is_first_stage(self) -> bool:
        return self.pipeline.rank == 0

    @property
    def is_last_stage(self) -> bool:
        return self.pipeline.rank == self.pipeline.size - 1


def build_mesh(layout: Layout, rank: int, clock: Clock | None = None) -> Mesh:
    """Create this rank's groups. Every rank of the world calls this, in a world that has been joined.

    Only members take part in creating a group, so that the cost does not grow with the world. torch names such a group
    after its ranks and the number of groups that the process has made before: all ranks make as many, in one order.
    """
    stages = layout.pipeline_group(rank)
    stage, last = stages.index(rank), len(stages) - 1
    clock = clock or Clock()
    tensor = _axis("tensor", layout.tensor_group(rank), rank, clock)
    data = _axis("data", layout.data_group(rank), rank, clock)
    activations, gradients = _group(stages), _group(stages)
    embedding = Axis()
    if last:
        members = [stages[0], stages[-1]] if stage in (0, last) else [rank]
        ends = _axis("embedding", members, rank, clock, even_alone=True)
        embedding = ends if ends.size > 1 else embedding
    before = stages[stage - 1] if stage > 0 else None
    after = stages[stage + 1] if stage < last else None
    return Mesh(
        layout=layout,
        clock=clock,
        world=Axis(layout.world_size, rank, line=Line("world", range(layout.world_size), clock)),
        tensor=tensor,
        pipeline=Axis(layout.pipeline_size, stage),
        data=data,
        embedding=embedding,
        activations_in=_channel(before, activations, clock),
        activations_out=_channel(after, activations, clock),
        gradients_in=_channel(after, gradients, clock),
        gradients_out=_channel(before, gradients, clock),
    )


def _axis(name: str, ranks: list[int], rank: int, clock: Clock, *, even_alone: bool = False) -> Axis:
    return Axis(len(ranks), ranks.index(rank), _group(ranks, even_alone=even_alone), Line(name, ranks, clock))


def _group(ranks: list[int], *, even_alone: bool = False) -> dist.ProcessGroup | None:
    """A group of `ranks`; of one rank only where that rank must make as many groups as others do."""
    if len(ranks) == 1 and not even_alone:
        return None
    group: dist.ProcessGroup = dist.new_group(ranks, use_local_synchronization=True)
    return group


def _channel(peer: int | None, group: dist.ProcessGroup | None, clock: Clock) -> Channel | None:
    return None if peer is None else Channel(peer, group, Line("pipeline", (peer,), clock))
