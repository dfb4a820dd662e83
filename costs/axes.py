"""The axes of parallelism: their order, the ranks along each, and the terms of a step that they cost. No torch.

    rank = ((pipeline * data_size + data) * context_size + context) * tensor_size + tensor

                   stage 0               stage 1          two stages, two replicas, two tensor ranks:
    replica 0    [ 0   1 ]  --------->  [ 4   5 ]         [ ] a tensor group, neighbours inside a node
                   |   |                  |   |            |  a data group, which sums gradients
    replica 1    [ 2   3 ]  --------->  [ 6   7 ]         --> channels: activations, and gradients back

Tensor is the fastest axis, because its groups talk most, and then context; the ranks of a stage are consecutive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple

from conf.plan.experiment import Experiment


class Coordinates(NamedTuple):
    """A rank's place on each axis. The fields are the axes, the slowest first."""

    pipeline: int = 0
    data: int = 0
    context: int = 0
    tensor: int = 0


AXES = Coordinates._fields
REPLICAS = ("data", "context")
"""The axes whose ranks hold the same parameters and have other tokens, so that gradients are summed over them."""

IN_STAGE = tuple(axis for axis in AXES if axis != "pipeline")

EXPERT, EXPERT_REPLICAS = "expert", "expert_replicas"
"""Two more axes, over the ranks of a stage whatever their other coordinates: those that share out the experts, and
those that hold the same ones. Expert is the faster one: an expert group is of neighbours."""

IN_REPLICA = tuple(axis for axis in AXES if axis != "data")
"""The axes whose ranks work on the same sequences, and give each other what they compute of them in every pass."""

ENDS = "embedding"
"""Not an axis, but named like one: the first and the last stage, which both hold a tied token embedding."""

WORLD, OPTIMIZER = "world", "optimizer"
"""Names that a clock counts seconds by beside the axes': all ranks, and the part of a step that updates weights."""

MEASURED_TERMS = {
    "tensor": "tensor_seconds",
    "context": "tensor_seconds",
    EXPERT: "tensor_seconds",
    "pipeline": "pipeline_wait_seconds",
    ENDS: "pipeline_wait_seconds",
    "data": "data_seconds",
    EXPERT_REPLICAS: "data_seconds",
    WORLD: "synchronization_seconds",
    OPTIMIZER: "optimizer_seconds",
}
"""The term of a measured step (`measurement.StepTerms`) that holds what a clock counts by each name."""

PREDICTED_TERMS = {
    "compute_seconds": ("compute_seconds",),
    "tensor_seconds": ("tensor_seconds",),
    "pipeline_wait_seconds": ("pipeline_seconds", "bubble_seconds"),
    "data_seconds": ("data_seconds",),
    "synchronization_seconds": ("waiting_seconds",),
    "optimizer_seconds": ("optimizer_seconds",),
}
"""The predicted terms (`costs.terms.SecondsByTerm`) that each measured one corresponds to."""


@dataclass(frozen=True)
class Layout:
    """The sizes of all axes, and the arithmetic between ranks and coordinates. It needs no process group.

    Attributes:
        sizes: by axis; an axis that is not named has one rank.
        pipeline_is_ring: the last stage sends to the first, which has the next model chunk of the interleaved schedule.
        expert_size: neighbouring ranks of a stage that share out the experts; None where the model has none.
    """

    sizes: Mapping[str, int]
    pipeline_is_ring: bool = False
    expert_size: int | None = None

    @classmethod
    def of(cls, experiment: Experiment) -> Layout:
        parallel = experiment.parallel
        sizes = {
            "pipeline": parallel.pipeline_parallel_size,
            "data": experiment.data_parallel_size,
            "context": parallel.context_parallel_size,
            "tensor": parallel.tensor_parallel_size,
        }
        expert_size = parallel.expert_parallel_size if experiment.model.experts is not None else None
        return cls(sizes, parallel.virtual_pipeline_size > 1, expert_size)

    @property
    def world_size(self) -> int:
        return prod(self.sizes.values())

    def size(self, *axes: str) -> int:
        """The number of ranks along these axes together."""
        return prod(self.sizes.get(axis, 1) for axis in axes)

    def rank(self, *coordinates: int) -> int:
        """The rank at these coordinates, which stand in the order of `AXES`; missing ones are 0."""
        rank = 0
        for axis, coordinate in zip(AXES, Coordinates(*coordinates), strict=True):
            rank = rank * self.size(axis) + coordinate
        return rank

    def coordinates(self, rank: int) -> Coordinates:
        coordinates = list[int]()
        for axis in reversed(AXES):
            rank, coordinate = divmod(rank, self.size(axis))
            coordinates.append(coordinate)
        return Coordinates(*reversed(coordinates))

    def ranks(self, rank: int, *axes: str) -> list[int]:
        """The ranks that share this one's coordinates on all axes but these, itself among them, in order."""
        own = self.coordinates(rank)._asdict()
        choices = (range(self.size(axis)) if axis in axes else (own[axis],) for axis in AXES)
        return [self.rank(*coordinates) for coordinates in product(*choices)]

    def expert_group(self, rank: int) -> list[int]:
        """The ranks that together hold all experts of this one's stage, in the order of the experts."""
        in_stage, size = self.ranks(rank, *IN_STAGE), self.expert_size or 1
        first = in_stage.index(rank) // size * size
        return in_stage[first : first + size]

    def expert_replicas(self, rank: int) -> list[int]:
        """The ranks of this one's stage that hold the same experts."""
        in_stage, size = self.ranks(rank, *IN_STAGE), self.expert_size or 1
        return in_stage[in_stage.index(rank) % size :: size]

    def exchanging(self, rank: int) -> list[int]:
        """The ranks whose passes hear of this one's: its replica, and those with which its ranks share out experts."""
        found, new = set[int](), {rank}
        while new:
            found |= new
            near = set[int]()
            for other in new:
                near |= {*self.ranks(other, *IN_REPLICA), *(self.expert_group(other) if self.expert_size else ())}
            new = near - found
        return sorted(found)

    def summing(self, rank: int) -> list[int]:
        """The ranks of this one's stage over which its gradients are summed."""
        return self.ranks(rank, *(REPLICAS if self.expert_size is None else IN_STAGE))

    def ends(self, rank: int) -> list[int]:
        """The ranks of the first and the last stage that share this one's other coordinates, if it is one of them.

        Any other rank, and one without other stages, is alone.
        """
        stages = self.ranks(rank, "pipeline")
        ends = sorted({stages[0], stages[-1]})
        return ends if rank in ends else [rank]
