"""Weight gradients accumulated in fp32, over all micro-batches of a step, in a buffer beside the weight.

The backward passes of this package add into the buffer themselves, which saves a copy of every weight gradient and a
pass over it. Where a parameter has no buffer, they hand the gradient to autograd as usual.
"""

from __future__ import annotations

from torch import Tensor, nn

ATTRIBUTE = "main_gradient"


def attach(parameter: nn.Parameter, buffer: Tensor) -> None:
    """Accumulate the gradient of `parameter` into `buffer`, fp32 and of the same shape."""
    setattr(parameter, ATTRIBUTE, buffer)
    parameter.register_post_accumulate_grad_hook(_move_into_buffer)  # type: ignore[no-untyped-call]


def main_gradient(parameter: Tensor) -> Tensor | None:
    buffer: Tensor | None = getattr(parameter, ATTRIBUTE, None)
    return buffer


def _move_into_buffer(parameter: Tensor) -> None:
    """For modules that leave their gradient to autograd, such as LayerNorm."""
    buffer = main_gradient(parameter)
    if buffer is not None and parameter.grad is not None:
        buffer.add_(parameter.grad)
        parameter.grad = None


def add_product(weight: Tensor, grad_out: Tensor, x: Tensor) -> Tensor | None:
    """The gradient grad_out^T x of a linear weight (out, in), from (..., out) and (..., in)."""
    left, right = grad_out.flatten(0, -2).t(), x.flatten(0, -2)
    buffer = main_gradient(weight)
    if buffer is None:
        return left @ right
    if buffer.dtype == right.dtype:
        buffer.addmm_(left, right)
    else:
        buffer.add_(left @ right)
    return None


def add_rows(weight: Tensor, grad_out: Tensor, rows: Tensor) -> Tensor | None:
    """The gradient of a looked-up table (rows, h): every vector of grad_out (..., h) added to its row."""
    buffer = main_gradient(weight)
    into = weight.new_zeros(weight.shape) if buffer is None else buffer
    into.index_add_(0, rows.flatten(), grad_out.flatten(0, -2).to(into.dtype))
    return into if buffer is None else None


def add_sum(bias: Tensor, grad_out: Tensor) -> Tensor | None:
    """The gradient of a bias (out) from (..., out)."""
    summed = grad_out.flatten(0, -2).sum(0)
    buffer = main_gradient(bias)
    if buffer is None:
        return summed
    buffer.add_(summed)
    return None
