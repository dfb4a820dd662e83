"""Expert parallelism: the ranks of an axis share out the experts, and tokens travel to theirs and back.

The axis lies over neighbouring ranks of a stage, whichever axes these are: all have other tokens (under sequence
parallelism tensor ranks do too). The ranks that hold the same experts are replicas of them, over which their gradients
are summed. Here four ranks of a stage and two groups of experts:

    rank               0       1       2       3
    expert group     [ 0  <->  0 ]   [ 1  <->  1 ]        tokens travel inside [ ]
    holds experts     0-3     4-7     0-3     4-7         0 and 2 are replicas of 0-3, 1 and 3 of 4-7

A pass through the experts, of rank 0 (rows are sorted by expert, so that what goes to a rank stands together):

    rows of its tokens  | e0 e1 e2 e3 | e4 e5 e6 e7 |   --all-to-all-->   | e0..e3 of rank 0 | e0..e3 of rank 1 |
    sorted by expert    | e0 e0 | e1 e1 | e2 e2 | e3 e3 |   --products-->  back the same way

How many rows go where is known to the host only when the router has chosen: it waits once for each layer and pass.
Source: arXiv 2101.03961, section 2.2; arXiv 2211.15841, which drops no token.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from train_core.model.elementwise import UntransformedFunction
from train_core.model.mixture import Balance, Capacity, Experts, ExpertWeights, on_host, weighted_gated_product
from train_core.parallel.collectives import Axis, Rows, all_gather, all_reduce, all_to_all, returning, shard
from train_core.parallel.context_parallel import in_order, own_tokens
from train_core.parallel.main_gradient import add_gradient, add_matrices
from train_core.parallel.narrow import Multiply, ScaledProducts


class _Exchange(UntransformedFunction):
    """Rows to the ranks that they are for; backward, their gradients return."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, rows: Rows, axis: Axis) -> Tensor:
        ctx.rows, ctx.axis = rows, axis
        return all_to_all(tensor, rows, axis).wait()

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        return all_to_all(grad_out, returning(ctx.rows), ctx.axis).wait(), None, None


class Groups(NamedTuple):
    """How many rows each of this rank's experts has, in their order: on the host, and on the device (E)."""

    sizes: list[int]
    counts: Tensor


class _ExpertProducts(UntransformedFunction):
    """Rows (n, in) that are sorted by expert, times the matrix (out, in) of each -> (n, out).

    In fp8 the rows of an expert are an operand of their own, and so is its matrix.

    It keeps its weight as `ctx.weight`, for the reason that `tensor_parallel` gives.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, groups: Groups, narrow: ScaledProducts | None) -> Tensor:
        ctx.weight, ctx.groups, ctx.narrow = weight, groups, narrow
        ctx.save_for_backward(rows)
        return _each_product(rows, weight, groups, narrow, transposed=True)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        (rows,) = ctx.saved_tensors
        narrow: ScaledProducts | None = ctx.narrow
        grad_rows = _each_product(grad_out, ctx.weight, ctx.groups, narrow, transposed=False)
        multiply = None if narrow is None else narrow.multiply()
        return grad_rows, add_expert_products(ctx.weight, grad_out, rows, ctx.groups.sizes, multiply), None, None


def _each_product(
    rows: Tensor, weight: Tensor, groups: Groups, narrow: ScaledProducts | None, *, transposed: bool
) -> Tensor:
    sizes = groups.sizes
    matrices = weight.view(len(sizes), -1, weight.size(1))
    if transposed:
        matrices = matrices.transpose(1, 2)
    if narrow is None and rows.is_cuda and rows.size(0) and takes_groups_of(matrices):
        return grouped_product(rows, matrices, groups.counts)
    out = rows.new_empty(rows.size(0), matrices.size(2))
    # Each product writes its rows of one tensor: results apart would have to be copied together.
    for part, matrix, into in zip(rows.split(sizes), matrices, out.split(sizes), strict=True):
        if narrow is None:
            torch.mm(part, matrix, out=into)
        elif part.size(0):  # no rows have no largest value
            multiply = partial(narrow.linear, bias=None) if transposed else narrow.input_gradient
            into.copy_(multiply(part, matrix.t() if transposed else matrix))
    return out


def add_expert_products(
    weight: Tensor, grad_out: Tensor, rows: Tensor, sizes: list[int], multiply: Multiply | None
) -> Tensor | None:
    """The gradients of matrices (E out, in) that stand one below the other, from (n, out) and (n, in).

    They are never put off: rows would have to be kept as long, and the exchanges hide no product.

    Args:
        sizes: rows of each matrix, in order.
        multiply: as for `add_product`.
    """

    def add_to(whole: Tensor, *, is_wide: bool) -> None:
        matrices = whole.view(len(sizes), -1, whole.size(1))
        for matrix, left, right in zip(matrices, grad_out.split(sizes), rows.split(sizes), strict=True):
            if left.size(0):  # an expert to which no token went would cost a kernel that adds nothing
                add_matrices(matrix, left.t(), right, multiply, is_wide=is_wide)

    return add_gradient(weight, add_to)


class _WithBiases(UntransformedFunction):
    """Adds the bias of each expert to its rows (n, out), in place; times the weight (n) of each row, if any."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, bias: Tensor, weights: Tensor | None, sizes: list[int]) -> Tensor:
        ctx.bias, ctx.sizes = bias, sizes
        ctx.mark_dirty(rows)
        ctx.save_for_backward(weights)
        for part, of_expert, scale in _WithBiases.parts(rows, bias, weights, sizes):
            part.add_(of_expert if scale is None else scale * of_expert)
        return rows

    @staticmethod
    def parts(
        rows: Tensor, bias: Tensor, weights: Tensor | None, sizes: list[int]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Each expert's rows, its bias, and the weights of its rows (n, 1) in their type."""
        scales = [None] * len(sizes) if weights is None else weights[:, None].to(rows.dtype).split(sizes)
        return zip(rows.split(sizes), bias.view(len(sizes), -1), scales, strict=True)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        (weights,), bias, sizes = ctx.saved_tensors, ctx.bias, ctx.sizes
        parts = list(_WithBiases.parts(grad_out, bias, weights, sizes))

        def add_to(whole: Tensor, *, is_wide: bool) -> None:
            for of_expert, (part, _, scale) in zip(whole.view(len(sizes), -1), parts, strict=True):
                weighted = part if scale is None else part * scale
                of_expert.add_(weighted.sum(0, dtype=whole.dtype if is_wide else None))

        of_bias = add_gradient(bias, add_to)
        if weights is None:
            return grad_out, of_bias, None, None
        of_weights = torch.cat([(part * of_expert).sum(-1, dtype=weights.dtype) for part, of_expert, _ in parts])
        return grad_out, of_bias, of_weights, None


ALIGNED_BYTES = 16
"""The kernel of grouped products reads rows of matrices that begin at a multiple of so many."""


def takes_groups_of(matrices: Tensor) -> bool:
    """True if the device multiplies groups of rows by matrices (E, in, out) such as these in one kernel."""
    is_aligned = all(size * matrices.element_size() % ALIGNED_BYTES == 0 for size in matrices.shape[1:])
    return is_aligned and _has_grouped_products(matrices.dtype, matrices.device)


@cache
def _has_grouped_products(dtype: torch.dtype, device: torch.device) -> bool:
    if device.type == "cuda":
        # On other GPUs, and for other types, torch's function has the host wait for the sizes, which it knows already.
        is_hopper_or_blackwell = torch.cuda.get_device_capability(device)[0] in (9, 10)
        if dtype != torch.bfloat16 or torch.version.hip is not None or not is_hopper_or_blackwell:
            return False
    # It is tried out, because that depends on the release of torch, too.
    ones = torch.ones(16, 16, dtype=dtype, device=device)
    try:
        grouped_product(ones, ones[None], torch.tensor([16], device=device))
    except (AttributeError, RuntimeError, TypeError):  # no such function, or none for this device or type
        return False
    return True


def grouped_product(rows: Tensor, matrices: Tensor, counts: Tensor) -> Tensor:
    """Rows (n, in), so many (E) for each matrix (E, in, out) -> (n, out), in one kernel."""
    return torch._grouped_mm(rows, matrices, offs=counts.cumsum(0).to(torch.int32))


class ExpertParallel(nn.Module):
    """Holds this rank's experts: takes and returns what `Experts` does."""

    def __init__(self, whole: Experts, axis: Axis, narrow: ScaledProducts | None = None) -> None:
        super().__init__()
        self.axis, self.num_own, self.narrow = axis, whole.num_experts // axis.size, narrow
        self.up, self.down, self.gating = whole.up, whole.down, whole.gating  # `own_weights` replaces the first two

    def forward(self, tokens: Tensor, of_token: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
        # Of all ranks, because in the end each has to know from whom how much comes, and sums of them are few numbers.
        counts_of_all = all_gather(counts[None], self.axis).wait()
        each = on_host(counts_of_all, of_token.size(0))
        # Of a capacity, behind those that are counted stand rows that are for nobody.
        num_rows = sum(each[self.axis.rank])
        of_token, weights = of_token[:num_rows], weights[:num_rows]
        if self.axis.size == 1:
            # The only rank has all experts, and the rows are in their order already.
            return self._through_own(tokens.index_select(0, of_token), weights, Groups(each[0], counts))
        # All numbers and not this rank's alone, for every rank has to know how much it gets from whom.
        going = [[sum(part) for part in _parts(of_rank, self.num_own)] for of_rank in each]
        coming = [_parts(of_rank, self.num_own)[self.axis.rank] for of_rank in each]  # by rank, and own expert
        sizes = [sum(of_expert) for of_expert in zip(*coming, strict=True)]
        # What comes is sorted by rank and then by expert, and is to be sorted by expert alone.
        expert = torch.arange(self.num_own, device=counts_of_all.device).repeat(self.axis.size)
        own = counts_of_all.view(self.axis.size, self.axis.size, self.num_own)[:, self.axis.rank].flatten()
        # With the length, or the host would wait for the device to count. Stable, so that the rows of an expert stay in
        # the order of their ranks, and sums over them are rounded alike in every run.
        order = expert.repeat_interleave(own, output_size=sum(sizes)).argsort(stable=True)
        # What sorts a permutation is its inverse.
        back = order.argsort()
        weights = _permute(_exchange(weights, going, self.axis), order, back)
        # One call in the other, so that no name keeps rows that nobody needs any more.
        rows = _permute(_exchange(tokens.index_select(0, of_token), going, self.axis), order, back)
        groups = Groups(sizes, own.view(self.axis.size, self.num_own).sum(0))
        out = _permute(self._through_own(rows, weights, groups), back, order)
        return _exchange(out, returning(going), self.axis)

    def _through_own(self, rows: Tensor, weights: Tensor, groups: Groups) -> Tensor:
        hidden = weighted_gated_product(_multiply(rows, self.up, groups, self.narrow), weights, self.gating)
        return _multiply(hidden, self.down, groups, self.narrow, weights)


class _Permuted(UntransformedFunction):
    """Rows in another order; backward in the order before, for which torch's own function would add them up."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return tensor.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return grad_out.index_select(0, back), None, None


def _permute(tensor: Tensor, order: Tensor, back: Tensor) -> Tensor:
    return _Permuted.apply(tensor, order, back)


def _parts(values: list[int], length: int) -> list[list[int]]:
    return [values[start : start + length] for start in range(0, len(values), length)]


def _exchange(tensor: Tensor, rows: Rows, axis: Axis) -> Tensor:
    return _Exchange.apply(tensor, rows, axis)


def _multiply(
    rows: Tensor, of_all: ExpertWeights, groups: Groups, narrow: ScaledProducts | None, weights: Tensor | None = None
) -> Tensor:
    """Where rows have been weighted before, `weights` are those of biases."""
    out: Tensor = _ExpertProducts.apply(rows, of_all.weight, groups, narrow)
    if of_all.bias is None:
        return out
    return _WithBiases.apply(out, of_all.bias, weights, groups.sizes)


def own_weights(whole: ExpertWeights, axis: Axis) -> ExpertWeights:
    """The matrices and biases of this rank's experts."""
    bias = None if whole.bias is None else shard(whole.bias.detach(), axis)
    return ExpertWeights(shard(whole.weight.detach(), axis), bias)


def shared_capacity(whole: Capacity, sequence: Axis, context: Axis) -> Capacity:
    """The capacity for sequences that are spread over these axes."""
    whole.gather = lambda chosen: in_order(all_gather(all_gather(chosen, sequence).wait(), context).wait(), context)
    whole.own = lambda of_sequence: shard(own_tokens(of_sequence, context), sequence)
    return whole


def shared_balance(whole: Balance, sequence: Axis, context: Axis) -> Balance:
    """The balance of a router whose sequences are spread over these axes."""

    def over_sequence(counts: Tensor) -> Tensor:
        return all_reduce(all_reduce(counts, sequence).wait(), context).wait()

    whole.over_sequence = over_sequence
    whole.num_in_loss = sequence.size
    whole.num_parts = sequence.size * context.size
    return whole
