"""The mesh: which coordinates a rank has on the pipeline, data and tensor axes, and its process group on each.

    rank = (pipeline * data_size + data) * tensor_size + tensor

Tensor is the fastest axis, so that tensor groups are neighbours inside a node; the ranks of a stage are consecutive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

    def along_tensor(self) -> list[list[int]]:
        """The ranks of every tensor-parallel group; likewise for the other axes."""
        return [[self.rank(p, d, t) for t in range(self.tensor_size)] for p in self._stages for d in self._replicas]

    def along_data(self) -> list[list[int]]:
        return [[self.rank(p, d, t) for d in self._replicas] for p in self._stages for t in range(self.tensor_size)]

    def along_pipeline(self) -> list[list[int]]:
        return [[self.rank(p, d, t) for p in self._stages] for d in self._replicas for t in range(self.tensor_size)]

    @property
    def _stages(self) -> range:
        return range(self.pipeline_size)

    @property
    def _replicas(self) -> range:
        return range(self.data_size)


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


def build_mesh(layout: Layout, rank: int) -> Mesh:
    """Create the groups. Every rank of a joined world calls it, and all walk over all groups in the same order.

    torch names a group by how many the process has seen, so a rank must also see those that it is no member of.
    """
    pipeline, data, tensor = layout.coordinates(rank)
    last = layout.pipeline_size - 1
    tensor_group, data_group = _join(layout.along_tensor(), rank), _join(layout.along_data(), rank)
    channels: dict[tuple[str, int], Channel | None] = {}
    for lower in range(last):
        pairs = [(stages[lower], stages[lower + 1]) for stages in layout.along_pipeline()]
        for kind in ("activations", "gradients"):
            channels[kind, lower] = _channel(pairs, rank)
    ends = [[stages[0], stages[-1]] for stages in layout.along_pipeline()] if last else []
    embedding_group = _join(ends, rank)
    return Mesh(
        layout=layout,
        world=Axis(layout.world_size, rank),
        tensor=Axis(layout.tensor_size, tensor, tensor_group),
        pipeline=Axis(layout.pipeline_size, pipeline),
        data=Axis(layout.data_size, data, data_group),
        embedding=Axis(2, int(pipeline == last), embedding_group) if embedding_group else Axis(),
        activations_in=channels.get(("activations", pipeline - 1)),
        activations_out=channels.get(("activations", pipeline)),
        gradients_in=channels.get(("gradients", pipeline)),
        gradients_out=channels.get(("gradients", pipeline - 1)),
    )


def _join(groups: Sequence[Sequence[int]], rank: int) -> dist.ProcessGroup | None:
    """Create all groups of a kind; the one that holds `rank`, or None when there is none or it has one rank."""
    mine: dist.ProcessGroup | None = None
    for ranks in groups:
        if len(ranks) > 1:
            group = dist.new_group(list(ranks))
            mine = group if rank in ranks else mine
    return mine


def _channel(pairs: Sequence[tuple[int, int]], rank: int) -> Channel | None:
    group = _join(pairs, rank)
    peers = [sum(pair) - rank for pair in pairs if rank in pair]
    return Channel(peers[0], group) if peers else None
