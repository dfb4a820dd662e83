"""The process groups of a rank, made before the first step, and what their ranks tell each other outside one."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from costs.axes import AXES, ENDS, EXPERT, EXPERT_REPLICAS, REPLICAS, WORLD, Layout
from train_core.parallel.clock import CHANNEL, GROUP, Clock, Line
from train_core.parallel.collectives import Axis, all_gather, all_reduce
from train_core.parallel.mesh import Channel, Mesh
from train_core.parallel.shared_memory import SharedMemory

GROUPS = (("tensor",), ("context",), REPLICAS)
"""The axes along which this rank has a group, in the order in which all ranks make them. Stages meet over channels and
never in a collective, so that the pipeline axis needs no group."""

INSIDE_LAYERS = ("tensor", "context")
"""The axes whose ranks exchange activations in every layer, on a CPU through memory where they share some."""


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


def total(values: list[float], axis: Axis, device: torch.device) -> list[float]:
    """Each value's sum over the axis, in fp64 like the values themselves."""
    if axis.size == 1:
        return values
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    return [float(value) for value in all_reduce(tensor, axis).wait().tolist()]


def gather(values: list[float], axis: Axis, device: torch.device) -> list[list[float]]:
    """Every rank's values, in rank order."""
    if axis.size == 1:
        return [values]
    tensor = torch.tensor([values], dtype=torch.float64, device=device)
    return all_gather(tensor, axis).wait().tolist()


def maximum(values: list[float], axis: Axis, device: torch.device) -> list[float]:
    """The largest that each value is on any rank of the axis."""
    return [max(of_ranks) for of_ranks in zip(*gather(values, axis, device), strict=True)]


def gather_objects(value: Any, axis: Axis) -> list[Any]:
    """Every rank's small Python value, in rank order."""
    if axis.size == 1:
        return [value]
    gathered: list[Any] = [None] * axis.size
    gather = partial(dist.all_gather_object, gathered, value, group=axis.group)
    if axis.line is None:
        gather()
    else:
        # torch pickles the value inside, so that its size is not known here.
        axis.line.clock.wait(axis.line.start("all_gather", 0), gather)
    return gathered
