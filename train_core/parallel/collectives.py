"""Collectives along one axis of the mesh. On an axis of one rank they cost nothing.

Each returns a `Pending` at once, and the result when that is waited for, so that work can hide the time between:

    summing = all_reduce(gradient, axis)     the sum travels ...
    product = x @ weight                     ... while this rank computes
    gradient = summing.wait()                only what is left of it is a wait, which the axis's clock is told
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from train_core.parallel.clock import Line, Operation
from train_core.parallel.shared_memory import Combine, SharedMemory, Shown

Found = TypeVar("Found")


@dataclass(frozen=True)
class Axis:
    """One axis of the mesh as this rank sees it.

    Attributes:
        rank: this rank's coordinate on the axis.
        group: torch's process group; None when the axis has one rank.
        line: is told of every wait, for the clock; None where nobody listens.
        memory: the memory that the axis's ranks share; None where they send messages.
    """

    size: int = 1
    rank: int = 0
    group: dist.ProcessGroup | None = None
    line: Line | None = None
    memory: SharedMemory | None = None


class Pending:
    """A tensor that a collective or a transfer is filling; `wait` returns it when it is ready.

    Without `work` the tensor is ready already, as on an axis of one rank, so that callers need no second path.
    """

    __slots__ = ("operation", "tensor", "work")

    def __init__(
        self, tensor: Tensor, work: dist.Work | Shown | Both | None = None, kind: str = "", line: Line | None = None
    ) -> None:
        """`kind` is what the clock of `line` is told of the operation."""
        self.tensor, self.work = tensor, work
        self.operation: Operation | None = None if line is None else line.start(kind, tensor.nbytes)

    def wait(self) -> Tensor:
        if self.work is not None:
            if self.operation is None:
                self.work.wait()
            else:
                self.operation.line.clock.wait(self.operation, self.work.wait)
        return self.tensor

    def is_done(self) -> bool:
        return self.work is None or self.work.is_completed()


# By their names since torch 2.13, or by the only ones that older releases know.
gather_into: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
scatter_into: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_reduce(tensor: Tensor, axis: Axis) -> Pending:
    """Start summing `tensor` over the axis, in place where it is contiguous."""
    if axis.size == 1:
        return Pending(tensor)
    tensor = tensor.contiguous()
    return _start("all_reduce", partial(dist.all_reduce, tensor), tensor, tensor, axis, partial(_sum, out=tensor))


def all_gather(tensor: Tensor, axis: Axis, into: Tensor | None = None) -> Pending:
    """Start concatenating every rank's `tensor` along dim 0: (n, ...) -> (n * axis.size, ...)."""
    if axis.size == 1:
        return Pending(tensor)
    if into is None:
        into = tensor.new_empty(tensor.size(0) * axis.size, *tensor.shape[1:])
    tensor = tensor.contiguous()
    return _start("all_gather", partial(gather_into, into, tensor), tensor, into, axis, partial(torch.cat, out=into))


def reduce_scatter(tensor: Tensor, axis: Axis, into: Tensor | None = None) -> Pending:
    """Start summing over the axis and keeping this rank's share of dim 0: (n, ...) -> (n / axis.size, ...)."""
    if axis.size == 1:
        return Pending(tensor)
    if into is None:
        into = tensor.new_empty(tensor.size(0) // axis.size, *tensor.shape[1:])
    tensor = tensor.contiguous()
    combine = partial(_sum_of_shares, out=into, axis=axis)
    return _start("reduce_scatter", partial(scatter_into, into, tensor), tensor, into, axis, combine)


def all_to_all(tensor: Tensor, rows: list[list[int]], axis: Axis) -> Pending:
    """Start sending rows of dim 0 to the ranks of the axis, in rank order, and getting theirs in that order.

    Args:
        rows: those that rank i sends to rank j, as `rows[i][j]`, the same on all ranks.
    """
    if axis.size == 1:
        return Pending(tensor)
    received, most = [of_rank[axis.rank] for of_rank in rows], max(map(sum, rows))
    into, tensor = tensor.new_empty(sum(received), *tensor.shape[1:]), tensor.contiguous()
    exchange = partial(dist.all_to_all_single, into, tensor, received, rows[axis.rank])
    if axis.memory is not None and tensor.size(0) < most:  # all ranks show tensors of one shape
        tensor = torch.cat((tensor, tensor.new_empty(most - tensor.size(0), *tensor.shape[1:])))
    return _start("all_to_all", exchange, tensor, into, axis, partial(_own_rows, out=into, rows=rows, rank=axis.rank))


def pass_on(tensor: Tensor, axis: Axis) -> Pending:
    """Start sending `tensor` to the next rank, from the last to the first, and receiving what the rank before sends."""
    assert axis.group is not None
    ranks, into = dist.get_process_group_ranks(axis.group), torch.empty_like(tensor)
    sending = dist.P2POp(dist.isend, tensor, ranks[(axis.rank + 1) % axis.size], axis.group)
    receiving = dist.P2POp(dist.irecv, into, ranks[axis.rank - 1], axis.group)
    # Together: NCCL runs the operations of a group one after the other, and all ranks would wait for their sends.
    return Pending(into, Both(dist.batch_isend_irecv([sending, receiving])), "pass_on", axis.line)


class Both(NamedTuple):
    """Operations that were started together; one, where torch makes one of them."""

    works: list[dist.Work]

    def wait(self) -> bool:
        for work in self.works:
            work.wait()
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)


def _start(
    kind: str, collective: Callable[..., Any], tensor: Tensor, into: Tensor, axis: Axis, combine: Combine
) -> Pending:
    """Start a collective: in shared memory where the ranks have some and `tensor` fits, else by the axis's group."""
    memory, line = axis.memory, axis.line
    if memory is None or not memory.takes(tensor):
        return Pending(into, collective(group=axis.group, async_op=True), kind, line)
    # Showing a tensor waits for a free slot by itself. Here the clock is to see that wait.
    if line is not None and not memory.has_room():
        line.clock.wait(Operation(kind, line, line.num_started + 1, into.nbytes), memory.make_room)
    return Pending(into, memory.show(tensor, combine), kind, line)


def _sum(shown: Sequence[Tensor], out: Tensor) -> None:
    # In rank order on every rank: sums that differ in their last bit would let replicated weights drift apart.
    torch.add(shown[0], shown[1], out=out)
    for tensor in shown[2:]:
        out += tensor


def _sum_of_shares(shown: Sequence[Tensor], out: Tensor, axis: Axis) -> None:
    _sum([shard(tensor, axis) for tensor in shown], out)


def _own_rows(shown: Sequence[Tensor], out: Tensor, rows: list[list[int]], rank: int) -> None:
    # Every sender's rows for this rank lie behind those for the ranks before it.
    starts = (sum(of_rank[:rank]) for of_rank in rows)
    parts = zip(shown, starts, rows, strict=True)
    torch.cat([tensor.narrow(0, start, of_rank[rank]) for tensor, start, of_rank in parts], out=out)


def shard(tensor: Tensor, axis: Axis, dim: int = 0) -> Tensor:
    """This rank's equal share of `tensor` along `dim`, as a view."""
    width = tensor.size(dim) // axis.size
    return tensor.narrow(dim, axis.rank * width, width)


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
