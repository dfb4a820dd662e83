"""The mesh: which coordinates a rank has on the pipeline, data and tensor axes, and its process group on each.

    rank = (pipeline * data_size + data) * tensor_size + tensor

                   stage 0               stage 1          two stages, two replicas, two tensor ranks:
    replica 0    [ 0   1 ]  --------->  [ 4   5 ]         [ ] a tensor group, neighbours inside a node
                   |   |                  |   |            |  a data group, which sums gradients
    replica 1    [ 2   3 ]  --------->  [ 6   7 ]         --> channels: activations, and gradients back

Tensor is the fastest axis, because its groups talk most; the ranks of a stage are consecutive.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from conf.experiment import Experiment
from train_core.parallel.clock import CHANNEL, GROUP, Clock, Line
from train_core.parallel.collectives import Axis
from train_core.parallel.shared_memory import SharedMemory


@dataclass(frozen=True)
class Layout:
    """Sizes of the three axes, and the arithmetic between ranks and coordinates. It needs no process group.

    Attributes:
        pipeline_is_ring: the last stage sends to the first, which has the next model chunk of the interleaved schedule.
    """

    tensor_size: int
    pipeline_size: int
    data_size: int
    pipeline_is_ring: bool = False

    @classmethod
    def of(cls, experiment: Experiment) -> Layout:
        parallel = experiment.parallel
        return cls(
            parallel.tensor_parallel_size,
            parallel.pipeline_parallel_size,
            experiment.data_parallel_size,
            pipeline_is_ring=parallel.virtual_pipeline_size > 1,
        )

    @property
    def world_size(self) -> int:
        return self.tensor_size * self.pipeline_size * self.data_size

    def rank(self, pipeline: int, data: int, tensor: int) -> int:
        return (pipeline * self.data_size + data) * self.tensor_size + tensor

    def coordinates(self, rank: int) -> tuple[int, int, int]:
        """The coordinates of a rank: pipeline, data, tensor."""
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
    """Activations or gradients from one stage to one other.

    Each has a group of its own: NCCL runs the operations of a group one after the other, so that with a shared one a
    send could wait behind a receive whose other end waits for that very send.
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
        activations_in: from the stage before; gradients_in from the one after. None at the ends of the pipeline,
            unless it is a ring.
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


def build_mesh(layout: Layout, rank: int, clock: Clock | None = None, timeout: timedelta | None = None) -> Mesh:
    """Create this rank's groups. Every rank of the world calls this, in a world that has been joined.

    Only members take part in creating a group, so that the cost does not grow with the world. torch names such a group
    after its ranks and the number of groups that the process has made before: all ranks make as many, in one order.

    NCCL would make the communicator of a group when it is first used, which is here and not in the first step: there
    the clock would not say for whom a rank waits, and the memory that it takes could need an idle device.

    Args:
        timeout: of every group; None for torch's own, which a group does not take over from its world.
    """
    stages = layout.pipeline_group(rank)
    stage, last = stages.index(rank), len(stages) - 1
    clock = clock or Clock()
    # Every rank makes its groups in this order; see above why that matters.
    tensor = _axis("tensor", layout.tensor_group(rank), rank, clock, timeout)
    if tensor.group is not None:
        tensor = replace(tensor, memory=SharedMemory.of(layout.tensor_group(rank), rank, tensor.group, timeout))
    data = _axis("data", layout.data_group(rank), rank, clock, timeout)
    embedding = Axis()
    if last:
        # Stages between the ends make a group too, each alone, so that all ranks have made equally many.
        members = [stages[0], stages[-1]] if stage in (0, last) else [rank]
        ends = _axis("embedding", members, rank, clock, timeout, even_alone=True)
        embedding = ends if ends.size > 1 else embedding
    channels = _channels(stages, stage, clock, timeout, is_ring=layout.pipeline_is_ring)
    return Mesh(
        layout=layout,
        clock=clock,
        world=_world(layout, rank, clock),
        tensor=tensor,
        # Stages meet over channels and never in a collective, so that this axis needs no group.
        pipeline=Axis(layout.pipeline_size, stage),
        data=data,
        embedding=embedding,
        **channels,
    )


def _world(layout: Layout, rank: int, clock: Clock) -> Axis:
    """All ranks. They have no group of their own, because torch takes None for the default one."""
    line = Line("world", range(layout.world_size), clock)
    if layout.world_size > 1:
        clock.wait(line.start(GROUP, 0), partial(_use_once, None))
    return Axis(layout.world_size, rank, line=line)


def _axis(
    name: str, ranks: list[int], rank: int, clock: Clock, timeout: timedelta | None, *, even_alone: bool = False
) -> Axis:
    """An axis and its group; a rank that is alone has none, unless it must make as many as others (`even_alone`)."""
    line, groups = Line(name, ranks, clock), list[dist.ProcessGroup]()

    def make() -> None:
        groups.append(_group(name, ranks, timeout))
        if len(ranks) > 1:
            _use_once(groups[0])

    if len(ranks) > 1 or even_alone:
        clock.wait(line.start(GROUP, 0), make)
    return Axis(len(ranks), ranks.index(rank), groups[0] if groups else None, line)


def _group(name: str, ranks: list[int], timeout: timedelta | None) -> dist.ProcessGroup:
    """A group of `ranks`, which torch's messages call `name`."""
    group: dist.ProcessGroup = dist.new_group(ranks, timeout=timeout, use_local_synchronization=True, group_desc=name)
    return group


def _use_once(group: dist.ProcessGroup | None) -> None:
    """Have NCCL make the communicator of a group, by the sum of one number; gloo has connected the ranks by now."""
    if dist.get_backend(group) == "nccl":
        dist.all_reduce(torch.zeros(1, device="cuda"), group=group)


def _channels(
    stages: list[int], stage: int, clock: Clock, timeout: timedelta | None, *, is_ring: bool
) -> dict[str, Channel]:
    """The fields of a mesh that are channels. Edge k joins stage k and the next one.

    Channels are made in rounds. The edges of a round share no stage, so that no two stages wait for each other; in a
    ring of three stages that takes three rounds:

        round 0    0-1  2        round 1    1-2  0        round 2    2-0  1

    A stage without an edge in a round makes groups of its own, because all must make as many.
    """
    size, channels = len(stages), {}
    edges = range(size if is_ring else size - 1)
    # Even edges, then odd ones. Where an odd ring closes, its last edge meets one of each, and needs a third round.
    rounds = [2 if edge == size - 1 and size % 2 else edge % 2 for edge in edges]
    for now in range(max(rounds, default=-1) + 1):
        # Of the two edges of this stage, to the next one and to the one before, at most one is in a round.
        edge = next((k for k in (stage, (stage - 1) % size) if k in edges and rounds[k] == now), None)
        ends = [stages[stage]] if edge is None else [stages[edge], stages[(edge + 1) % size]]
        names = ("activations_out", "gradients_in") if edge == stage else ("activations_in", "gradients_out")
        for name in names:
            if edge is None:
                _group("pipeline", ends, timeout)
            else:
                peer = ends[1] if edge == stage else ends[0]
                channels[name] = _channel(ends, peer, clock, timeout, sends=name.endswith("out"))
    return channels


def _channel(ends: list[int], peer: int, clock: Clock, timeout: timedelta | None, *, sends: bool) -> Channel:
    line, made = Line("pipeline", (peer,), clock), list[Channel]()

    def make() -> None:
        made.append(Channel(peer, _group("pipeline", ends, timeout), line))
        _connect(made[0], sends=sends)

    clock.wait(line.start(CHANNEL, 0), make)
    return made[0]


def _connect(channel: Channel, *, sends: bool) -> None:
    """Send one number over a new channel.

    NCCL joins two ranks when both first use their group, and whoever comes first waits. In the middle of a schedule,
    where inputs are asked for ahead, stages could so come to wait for each other in a circle.
    """
    backend = dist.get_backend(channel.group)
    if backend == "fake":  # in a rehearsal nobody is at the other end
        return
    number = torch.zeros(1, device="cuda" if backend == "nccl" else "cpu")
    work = (dist.isend if sends else dist.irecv)(number, channel.peer, group=channel.group)
    assert work is not None
    work.wait()
