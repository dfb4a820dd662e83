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
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from train_core.parallel.clock import Line, Ongoing
from train_core.parallel.shared_memory import Combine, SharedMemory


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


Rows = list[list[int]]
"""How many rows each rank of the axis sends to each: `rows[i][j]` from rank i to rank j."""


class Pending:
    """A tensor that a collective or a transfer is filling; `wait` returns it when it is ready.

    Without `work` the tensor is ready already, as on an axis of one rank, so that callers need no second path.
    """

    __slots__ = ("operation", "tensor", "work")

    def __init__(self, tensor: Tensor, work: Ongoing | None = None, kind: str = "", line: Line | None = None) -> None:
        """`kind` is what `line` is told of the operation."""
        self.tensor, self.work = tensor, work
        self.operation = None if work is None or line is None else line.start(kind, tensor.nbytes)

    def wait(self) -> Tensor:
        if self.work is not None and self.operation is not None:
            self.operation.line.clock.wait(self.operation, self.work.wait)
        elif self.work is not None:
            self.work.wait()
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
    return start("all_reduce", partial(dist.all_reduce, tensor), tensor, tensor, axis)


def all_gather(tensor: Tensor, axis: Axis, into: Tensor | None = None) -> Pending:
    """Start concatenating every rank's `tensor` along dim 0: (n, ...) -> (n * axis.size, ...)."""
    if axis.size == 1:
        return Pending(tensor)
    if into is None:
        into = tensor.new_empty(tensor.size(0) * axis.size, *tensor.shape[1:])
    tensor = tensor.contiguous()
    return start("all_gather", partial(gather_into, into, tensor), tensor, into, axis)


def reduce_scatter(tensor: Tensor, axis: Axis, into: Tensor | None = None) -> Pending:
    """Start summing over the axis and keeping this rank's share of dim 0: (n, ...) -> (n / axis.size, ...)."""
    if axis.size == 1:
        return Pending(tensor)
    if into is None:
        into = tensor.new_empty(tensor.size(0) // axis.size, *tensor.shape[1:])
    tensor = tensor.contiguous()
    return start("reduce_scatter", partial(scatter_into, into, tensor), tensor, into, axis)


def all_to_all(tensor: Tensor, rows: Rows, axis: Axis) -> Pending:
    """Start sending rows of dim 0 to the ranks of the axis, in rank order, and getting theirs in that order.

    Args:
        rows: those that rank i sends to rank j, as `rows[i][j]`, the same on all ranks.
    """
    if axis.size == 1:
        return Pending(tensor)
    received = [of_rank[axis.rank] for of_rank in rows]
    into, tensor = tensor.new_empty(sum(received), *tensor.shape[1:]), tensor.contiguous()
    exchange = partial(dist.all_to_all_single, into, tensor, received, rows[axis.rank])
    if axis.memory is not None and tensor.size(0) < (most := max(map(sum, rows))):  # all show tensors of one shape
        tensor = torch.cat((tensor, tensor.new_empty(most - tensor.size(0), *tensor.shape[1:])))
    return start("all_to_all", exchange, tensor, into, axis, partial(_own_rows, rows=rows))


def _own_rows(shown: Sequence[Tensor], out: Tensor, rank: int, rows: Rows) -> None:
    # Every sender's rows for this rank lie behind those for the ranks before it.
    starts = (sum(of_rank[:rank]) for of_rank in rows)
    parts = zip(shown, starts, rows, strict=True)
    torch.cat([tensor.narrow(0, start, of_rank[rank]) for tensor, start, of_rank in parts], out=out)


def returning(rows: Rows) -> Rows:
    """The rows of the exchange that sends everything back."""
    return [list(to_rank) for to_rank in zip(*rows, strict=True)]


def start(
    kind: str, run: Callable[..., Any], tensor: Tensor, into: Tensor, axis: Axis, combine: Combine | None = None
) -> Pending:
    """Start a collective, by the axis's group unless its ranks share memory and `tensor` fits into it."""
    memory = axis.memory
    if memory is not None and memory.takes(tensor):
        return Pending(into, memory.start(kind, tensor, into, axis.line, combine), kind, axis.line)
    return Pending(into, run(group=axis.group, async_op=True), kind, axis.line)


def shard(tensor: Tensor, axis: Axis, dim: int = 0) -> Tensor:
    """This rank's equal share of `tensor` along `dim`, as a view."""
    width = tensor.size(dim) // axis.size
    return tensor.narrow(dim, axis.rank * width, width)
