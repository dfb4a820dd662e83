"""The mesh: this rank's process group along each axis, and its channels to the neighbouring stages.

Which ranks those are is said in `train_core.axes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from train_core.axes import AXES, ENDS, EXPERT, EXPERT_REPLICAS, REPLICAS, WORLD, Layout
from train_core.parallel.clock import CHANNEL, GROUP, Clock, Line
from train_core.parallel.collectives import Axis
from train_core.parallel.shared_memory import SharedMemory
from train_core.shared_rules import Treatment


@dataclass(frozen=True)
class Channel:
    """Activations or gradients from one stage to one other.

    Each has a group of its own: NCCL runs the operations of a group one after the other, so that with a shared one a
    send could wait behind a receive whose other end waits for that very send.
    """

    peer: int
    group: dist.ProcessGroup | None
    line: Line


GROUPS = (("tensor",), ("context",), REPLICAS)
"""The axes along which this rank has a group, in the order in which all ranks make them. Stages meet over channels and
never in a collective, so that the pipeline axis needs no group."""

INSIDE_LAYERS = ("tensor", "context")
"""The axes whose ranks exchange activations in every layer, on a CPU through memory where they share some."""


@dataclass(frozen=True)
class Mesh:
    """The groups and channels of this rank.

    Attributes:
        clock: is told of every wait on the axes and channels.
        axes: the groups of this rank by the axes that they lie along, and the first and the last stage as `ENDS`.
        activations_in: from the stage before; gradients_in from the one after. None at the ends of the pipeline,
            unless it is a ring.
    """

    layout: Layout
    clock: Clock
    world: Axis
    axes: Mapping[tuple[str, ...], Axis]
    activations_in: Channel | None = None
    activations_out: Channel | None = None
    gradients_in: Channel | None = None
    gradients_out: Channel | None = None

    def axis(self, *names: str) -> Axis:
        """The ranks that differ from this one along these axes alone; all users of one group share it."""
        return self.axes[names]

    def counts(self, treatment: Treatment) -> bool:
        """True if this rank counts such parameters in norms and checkpoints: of several copies the first one does."""
        return all(self.axis(name).rank == 0 for name in treatment.copied_over)

    @property
    def tensor(self) -> Axis:
        return self.axis("tensor")

    @property
    def pipeline(self) -> Axis:
        return self.axis("pipeline")

    @property
    def batch(self) -> Axis:
        """The ranks among which the sequences of a batch are shared out."""
        return self.axis("data")

    @property
    def replicas(self) -> Axis:
        """The ranks over which gradients are summed, as they hold the same parameters and have other tokens."""
        return self.axis(*REPLICAS)

    @property
    def is_first_stage(self) -> bool:
        return self.pipeline.rank == 0

    @property
    def is_first_of_stage(self) -> bool:
        """True on the one rank of a stage that writes or tells what all of its ranks hold alike."""
        return self.world.rank == self.layout.rank(self.pipeline.rank)

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
    clock, stages = clock or Clock(), layout.ranks(rank, "pipeline")
    own = zip(AXES, layout.coordinates(rank), strict=True)
    axes: dict[tuple[str, ...], Axis] = {(name,): Axis(layout.size(name), place) for name, place in own}
    # Every rank makes its groups in this order; see above why that matters.
    for names in GROUPS:
        axes[names] = _axis(names[0], layout.ranks(rank, *names), rank, clock, timeout)
    inside = {name: layout.ranks(rank, name) for name in INSIDE_LAYERS}
    if layout.expert_size is not None:
        inside[EXPERT] = layout.expert_group(rank)
        axes[EXPERT,] = _axis(EXPERT, inside[EXPERT], rank, clock, timeout)
        axes[EXPERT_REPLICAS,] = _axis(EXPERT_REPLICAS, layout.expert_replicas(rank), rank, clock, timeout)
    for name, ranks in inside.items():
        if (group := axes[name,].group) is not None:
            # After the groups, over which the ranks have to agree on the memory.
            axes[name,] = replace(axes[name,], memory=SharedMemory.of(ranks, rank, group, timeout))
    # Stages between the ends make a group too, each alone, so that all ranks have made equally many.
    ends = _axis(ENDS, layout.ends(rank), rank, clock, timeout, even_alone=len(stages) > 1)
    # A group that a stage made alone has served once it has been counted.
    axes[ENDS,] = ends if ends.size > 1 else Axis()
    channels = _channels(stages, stages.index(rank), clock, timeout, is_ring=layout.pipeline_is_ring)
    return Mesh(layout, clock, _world(layout, rank, clock), axes, **channels)


def _world(layout: Layout, rank: int, clock: Clock) -> Axis:
    """All ranks. They have no group of their own, because torch takes None for the default one."""
    line = Line(WORLD, range(layout.world_size), clock)
    if layout.world_size > 1:
        clock.wait(line.start(GROUP, 0), partial(_use_once, None))
    return Axis(layout.world_size, rank, line=line)


def _axis(
    name: str, ranks: list[int], rank: int, clock: Clock, timeout: timedelta | None, *, even_alone: bool = False
) -> Axis:
    """An axis and its group; a rank that is alone has none, unless it must make as many as others (`even_alone`)."""
    line, group = Line(name, ranks, clock), None

    def make() -> dist.ProcessGroup:
        made = _group(name, ranks, timeout)
        if len(ranks) > 1:
            _use_once(made)
        return made

    if len(ranks) > 1 or even_alone:
        # As an operation of the clock, so that a watchdog can name the rank that does not come.
        group = clock.wait(line.start(GROUP, 0), make)
    return Axis(len(ranks), ranks.index(rank), group, line)


def _group(name: str, ranks: list[int], timeout: timedelta | None) -> dist.ProcessGroup:
    """A group of `ranks`, which torch's messages call `name`."""
    return dist.new_group(ranks, timeout=timeout, use_local_synchronization=True, group_desc=name)


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
    line = Line("pipeline", (peer,), clock)

    def make() -> Channel:
        made = Channel(peer, _group("pipeline", ends, timeout), line)
        _connect(made, sends=sends)
        return made

    return clock.wait(line.start(CHANNEL, 0), make)


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
