"""Weight gradients accumulated over all micro-batches of a step, in a buffer beside the weight.

    weight ---- main_gradient   its buffer; backward passes add into it themselves, which saves a copy of every weight
                     |          gradient and a pass over it
                     |
                     +------- listener   is told before and after each addition: the bucket's `Reduction`, which so
                                         knows when the last gradient of a step has come and its sum may travel

Where a parameter has no buffer, the backward passes hand the gradient to autograd as usual.

Under a zero-bubble schedule the products that make weight gradients are put off: inside `deferred_products` they are
only noted, and `add_products` makes them later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn

from train_core.parallel.collectives import Axis, all_gather
from train_core.parallel.narrow import Multiply, add_to_rows, add_wide_product

ALONE = Axis()


class Listener(Protocol):
    """Whoever wants to be told before and after a gradient is added to a parameter's buffer."""

    def before_gradient(self) -> None: ...

    def after_gradient(self) -> None: ...


@dataclass(eq=False)
class MainGradient:
    """The buffer beside a weight; whoever adds a gradient to it tells the listener before and after.

    Attributes:
        is_wide: products and sums of narrower values are made in the buffer's type; see `narrow.has_wide_products`.
    """

    buffer: Tensor
    listener: Listener
    is_wide: bool


def attach(parameter: nn.Parameter, buffer: Tensor, listener: Listener, *, is_wide: bool = False) -> None:
    """Accumulate the gradient of `parameter` into `buffer`, of the same shape; see `MainGradient`."""
    # Kept on the parameter, because a backward pass has nothing in hand but the weight.
    parameter.main_gradient = MainGradient(buffer, listener, is_wide)  # type: ignore[attr-defined]
    # Who adds to the buffer itself hands autograd none. The hook holds nothing: torch would never let go of a parameter
    # that its own hook leads to.
    parameter.register_post_accumulate_grad_hook(_take_over)


def _take_over(parameter: Tensor) -> None:
    """Add the gradient of a module that leaves it to autograd, such as LayerNorm."""
    if parameter.grad is not None:
        gradient: MainGradient = parameter.main_gradient  # type: ignore[attr-defined]
        gradient.listener.before_gradient()
        gradient.buffer.add_(parameter.grad)
        # Else autograd would add the next micro-batch's gradient to it, which would then count twice.
        parameter.grad = None
        gradient.listener.after_gradient()


def main_gradient(parameter: Tensor) -> MainGradient | None:
    return getattr(parameter, "main_gradient", None)


DeferredProduct: TypeAlias = "partial[Callable[[], Tensor | None]]"
"""Starts to gather what a weight gradient that was put off is made of, and returns what makes it; see `add_product`."""


@contextmanager
def deferred_products() -> Iterator[list[DeferredProduct]]:
    """Collect the products of backward passes inside the block, and do not make them yet.

    They are collected in a global and not in a thread's own variable, because autograd runs the backward passes of a
    GPU on threads of its own.
    """
    global _deferred
    _deferred = []
    try:
        yield _deferred
    finally:
        _deferred = None


_deferred: list[DeferredProduct] | None = None


def are_products_deferred() -> bool:
    return _deferred is not None


@torch.no_grad()
def add_products(products: list[DeferredProduct]) -> None:
    """Make the products that were put off, and empty the list; what the next one has to gather travels meanwhile."""
    started = [start() for start in products[:1]]
    while products:
        products.pop(0)  # off the list first, so that its tensors are freed as soon as it has been made
        make = started.pop()
        started = [start() for start in products[:1]]
        without_buffer = make()
        assert without_buffer is None, "only a weight with a main gradient can wait for it"


def _start_product(
    weight: Tensor, grad_out: Tensor, x: Tensor, axis_of_grad_out: Axis, axis_of_x: Axis, multiply: Multiply | None
) -> Callable[[], Tensor | None]:
    whole, whole_x = all_gather(grad_out, axis_of_grad_out), all_gather(x, axis_of_x)
    return lambda: add_product(weight, whole.wait(), whole_x.wait(), multiply=multiply)


def add_product(
    weight: Tensor,
    grad_out: Tensor,
    x: Tensor,
    *,
    axis_of_grad_out: Axis = ALONE,
    axis_of_x: Axis = ALONE,
    multiply: Multiply | None = None,
) -> Tensor | None:
    """The gradient grad_out^T x of a linear weight (out, in), from (..., out) and (..., in).

    Args:
        axis_of_grad_out: where products are put off, grad_out is only a shard of its sequence, to be gathered over this
            axis later, so that no more waits than a rank's share of the activations; likewise axis_of_x.
        multiply: makes the product; None multiplies the matrices as they are.
    """
    if _deferred is not None:
        # Detached, because their graph would keep the stage's input and its gradient alive as long.
        kept = grad_out.detach(), x.detach()
        _deferred.append(partial(_start_product, weight, *kept, axis_of_grad_out, axis_of_x, multiply))
        return None
    left, right = grad_out.flatten(0, -2).t(), x.flatten(0, -2)
    gradient: MainGradient | None = getattr(weight, "main_gradient", None)
    if gradient is None:
        return left @ right if multiply is None else multiply(left, right, weight.dtype)
    gradient.listener.before_gradient()
    add_matrices(gradient.buffer, left, right, multiply, is_wide=gradient.is_wide)
    gradient.listener.after_gradient()
    return None


def add_gradient(weight: Tensor, add_to: Callable[..., None]) -> Tensor | None:
    """Have a gradient added to the weight's buffer, or return it where there is none; `add_to(tensor, is_wide=...)`."""
    gradient: MainGradient | None = getattr(weight, "main_gradient", None)
    if gradient is None:
        alone = torch.zeros_like(weight)
        add_to(alone, is_wide=False)
        return alone
    gradient.listener.before_gradient()
    add_to(gradient.buffer, is_wide=gradient.is_wide)
    gradient.listener.after_gradient()
    return None


def add_matrices(buffer: Tensor, left: Tensor, right: Tensor, multiply: Multiply | None, *, is_wide: bool) -> None:
    if multiply is not None:
        buffer.add_(multiply(left, right, buffer.dtype))
    elif buffer.dtype == right.dtype:
        buffer.addmm_(left, right)
    elif is_wide:
        add_wide_product(buffer, left, right)
    else:
        # Rounds the product to its own type first. To widen its factors would take a CPU five times as long.
        buffer.add_(left @ right)


def add_rows(weight: Tensor, grad_out: Tensor, rows: Tensor, elsewhere: Tensor | None = None) -> Tensor | None:
    """The gradient of a looked-up table (rows, h): every vector of grad_out (..., h) added to its row.

    Args:
        elsewhere: the vectors (...) that are not added.
    """
    return add_gradient(weight, lambda table, is_wide: add_to_rows(table, grad_out, rows, elsewhere))


def add_sum(bias: Tensor, grad_out: Tensor) -> Tensor | None:
    """The gradient of a bias (out) from (..., out)."""
    vectors = grad_out.flatten(0, -2)
    # In its own type a sum is added up in fp32 and then rounded; a CPU takes five times as long for a wider one.
    return add_gradient(
        bias, lambda buffer, is_wide: buffer.add_(vectors.sum(0, dtype=buffer.dtype if is_wide else None))
    )
