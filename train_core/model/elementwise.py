"""The operations between the matrix products of a Llama, whose backward passes keep less than autograd would.

Shapes: s sequence, b micro-batch, g query groups, n query heads of a group, d head size, f feed-forward.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

aten = torch.ops.aten
HAS_FUSED_RMS_NORM = hasattr(aten, "_fused_rms_norm_backward")
"""True if torch has the norm as one kernel on GPUs. Older releases make it of several, which keep copies in fp32."""

SHARED_TABLE_DIMS = 3  # cosine or sine, position, pair of elements: of a table that all sequences share
Norm = Callable[[Tensor], Tensor]


class Activation(NamedTuple):
    """A function and its gradient: `backward(grad_out, x)`."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]


GELU = Activation(partial(functional.gelu, approximate="tanh"), partial(aten.gelu_backward, approximate="tanh"))
SILU = Activation(functional.silu, aten.silu_backward)
STEEPNESS = 1.702


def _backward_of_sigmoid(grad_out: Tensor, x: Tensor) -> Tensor:
    share = (STEEPNESS * x).sigmoid()
    return grad_out * (share * (1 + STEEPNESS * x * (1 - share)))


SIGMOID_GELU = Activation(lambda x: x * (STEEPNESS * x).sigmoid(), _backward_of_sigmoid)
"""GELU by a sigmoid. Source: arXiv 1606.08415, section 2."""


class UntransformedFunction(Function):
    """A function that is applied without torch's look for transforms of functorch, which takes a third of the time."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        return super(Function, cls).apply(*args)  # type: ignore[misc]


class _RMSNorm(UntransformedFunction):
    """The norm; keeps its input and one fp32 value per vector for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        wide = x.float()  # squares of bf16 or fp16 would lose digits or overflow
        scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.size(-1)).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).to(x.dtype).mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        normed, grad = x.float() * scale, grad_out.float()
        grad_weight = (grad * normed).flatten(0, -2).sum(0).to(weight.dtype)
        grad = grad * weight
        # A vector's length is divided out, so that the gradient along the vector itself has no effect and is taken off.
        along = (grad * normed).mean(-1, keepdim=True)
        return grad.addcmul_(normed, along, value=-1).mul_(scale).to(x.dtype), grad_weight, None


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean of x^2 + epsilon) * weight, along the last dim. Source: arXiv 1910.07467, equation 4."""
    if x.is_cuda and HAS_FUSED_RMS_NORM:  # the kernel keeps as little as the function below
        return functional.rms_norm(x, (x.size(-1),), weight, epsilon)
    return _RMSNorm.apply(x, weight, epsilon)


class RMSNorm(nn.Module):
    """Scales every vector to unit mean square: (..., h) -> (..., h)."""

    def __init__(self, hidden_size: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.epsilon)


class _WideNorm(UntransformedFunction):
    """The norm of all heads of a token together; keeps its input and one fp32 value of each token."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, norm: WideNorm) -> Tensor:
        wide = x.float()
        square = norm.over_heads(wide.square().sum(HEADS, keepdim=True))
        scale = square.div_(norm.width).add_(norm.epsilon).rsqrt_()
        ctx.norm = norm
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).to(x.dtype).mul_(weight.view(x.shape[2:]))

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight, scale), norm = ctx.saved_tensors, ctx.norm
        normed, grad = x.float() * scale, grad_out.float()
        grad_weight = (grad * normed).sum((0, 1)).flatten().to(weight.dtype)
        grad = grad * weight.view(x.shape[2:])
        along = norm.over_heads((grad * normed).sum(HEADS, keepdim=True)).div_(norm.width)
        return grad.sub_(normed.mul_(along)).mul_(scale).to(x.dtype), grad_weight, None


HEADS = (2, 3, 4)  # of (s, b, g, n, d) the dims of a token


class WideNorm(nn.Module):
    """RMSNorm over all heads of queries, or of keys, together: (s, b, g, n, d) -> the same. Source: arXiv 2501.00656.

    Attributes:
        over_heads: sums over all who have heads of the same tokens.
        width: elements of all heads.
    """

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.width, self.epsilon = width, epsilon
        self.over_heads: Callable[[Tensor], Tensor] = lambda sums: sums
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return _WideNorm.apply(x, self.weight, self)


class _Gated(UntransformedFunction):
    """The gate times the input; keeps only these two, and computes the activated gate again in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: Activation) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(x)
        gate, up = x.unbind(-2)
        return activation.forward(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None]:
        (x,), activation = ctx.saved_tensors, ctx.activation
        gate, up = x.unbind(-2)
        grad_gate = activation.backward(grad_out * up, gate)
        return torch.stack((grad_gate, activation.forward(gate).mul_(grad_out)), dim=-2), None


def gated_product(x: Tensor, block_size: int, activation: Activation) -> Tensor:
    """activation(gate) * up: (..., 2f) -> (..., f), where blocks of both take turns along the last dim.

    Source: arXiv 2002.05202, section 2 (SwiGLU and its kin).
    """
    out: Tensor = _Gated.apply(x.unflatten(-1, (-1, 2, block_size)), activation)
    return out.flatten(-2)


Turns: TypeAlias = tuple[Tensor, ...]
"""Cosine and sine of every position's angles, (s, b or 1, 1, 1, d/2)."""


def _turns_of(table: Tensor) -> Turns:
    """Those of the table (2, s, d/2), or of that of every sequence (2, s, b, d/2)."""
    return (table[:, :, None, None, None] if table.dim() == SHARED_TABLE_DIMS else table[:, :, :, None, None]).unbind()


def _turn(x: Tensor, turns: Turns, sign: int, into: Tensor) -> None:
    """Turn element i and i + d/2 of each vector of x (s, b, g, n, d) by its position's angle, as Hugging Face does."""
    cos, sin = turns
    (left, right), (into_left, into_right) = x.chunk(2, -1), into.chunk(2, -1)
    torch.mul(left, cos, out=into_left).addcmul_(right, sin, value=-sign)
    torch.mul(right, cos, out=into_right).addcmul_(left, sin, value=sign)


def _rotated_copy(x: Tensor, turns: Turns, sign: int) -> Tensor:
    """The result of `_turn` as a new tensor: torch's compiler cannot write into a part of one, and fuses this."""
    cos, sin = turns
    left, right = x.chunk(2, -1)
    return torch.cat((left * cos - right * (sign * sin), right * cos + left * (sign * sin)), dim=-1)


class _TurnedHeads(UntransformedFunction):
    """Copies queries, keys and values apart and turns the first two; keeps nothing for backward."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, table: Tensor) -> tuple[Tensor, ...]:
        ctx.turns = turns = _turns_of(table)
        query, key, value = heads.split_with_sizes([heads.size(-2) - 2, 1, 1], dim=-2)
        # Turned on their way into the copies, which takes one pass over memory and not two.
        return _turned_copy(query, turns, 1), _turned_copy(key, turns, 1), value.contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        query, key, value = gradients
        # The gradient of a rotation is the rotation back, so that neither input nor output is needed.
        if torch.compiler.is_compiling():
            return torch.cat((*(_turned_copy(each, ctx.turns, -1) for each in (query, key)), value), dim=-2), None
        grad = query.new_empty(*query.shape[:-2], query.size(-2) + 2, query.size(-1))
        parts = grad.split_with_sizes([query.size(-2), 1, 1], dim=-2)
        _turn(query, ctx.turns, -1, into=parts[0])
        _turn(key, ctx.turns, -1, into=parts[1])
        parts[2].copy_(value)
        return grad, None


class _Turned(UntransformedFunction):
    """Heads (s, b, g, n, d) turned by their positions; keeps nothing for backward."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, table: Tensor) -> Tensor:
        ctx.turns = _turns_of(table)
        return _turned_copy(heads, ctx.turns, 1)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None]:
        return _turned_copy(grad_out, ctx.turns, -1), None


def _turned_copy(heads: Tensor, turns: Turns, sign: int) -> Tensor:
    if torch.compiler.is_compiling():
        return _rotated_copy(heads, turns, sign)
    out = torch.empty_like(heads, memory_format=torch.contiguous_format)
    _turn(heads, turns, sign, into=out)
    return out


def turn_heads(heads: Tensor, table: Tensor) -> Tensor:
    """Heads (s, b, g, n, d), each turned by the angle of its position."""
    return _Turned.apply(heads, table)


def split_heads(
    qkv: Tensor, queries_per_group: int, head_size: int, table: Tensor | None, norms: tuple[Norm | None, Norm | None]
) -> list[Tensor]:
    """Queries (b, g n, s, d), keys and values (b, g, s, d) from (s, b, g (n + 2) d), turned by `table` if there is one.

    The last dim holds group after group: its query heads, its key head, its value head.

    Args:
        norms: that of query heads and that of key heads, which come before the turn; None where a model has none.
    """
    heads = qkv.view(*qkv.shape[:-1], -1, queries_per_group + 2, head_size)
    (of_query, of_key), sizes = norms, [queries_per_group, 1, 1]
    if table is None:
        parts: tuple[Tensor, ...] = heads.split_with_sizes(sizes, dim=-2)
    elif of_query is None or of_key is None:
        parts = _TurnedHeads.apply(heads, table)
    else:
        # The norms keep what they took, so that values may stay where they are.
        query, key, value = heads.split_with_sizes(sizes, dim=-2)
        parts = turn_heads(of_query(query), table), turn_heads(of_key(key), table), value
    # First the heads become one dim, and then the dims change places: where several queries of a group need a copy, it
    # has the order in which attention's output comes, which so is not copied again.
    return [part.flatten(2, 3).permute(1, 2, 0, 3) for part in parts]
