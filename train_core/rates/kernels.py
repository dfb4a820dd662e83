"""The rates of one device in matrix products, attention, memory traffic and very small kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from conf.types.schema import Dtype
from conf.units import FLOAT32_BYTES
from train_core.model.dtypes import DTYPES
from train_core.model.transformer import Layer
from train_core.rates.record import (
    SMALL_LAYER,
    AttentionRate,
    AttentionShape,
    MeasuredSpread,
    Product,
    ProductRate,
    RatesPlan,
)
from train_core.rates.stopwatch import Run, Stopwatch

SMALL = 16
"""So few elements that arithmetic on them costs nothing beside the call."""

NUM_SMALL_LAYERS = 4
SHORTEST_SECONDS = 1e-9
"""Stands in where noise makes the time with small kernels no longer than the time without: it has to be positive."""


def product_rates(stopwatch: Stopwatch, plan: RatesPlan) -> list[ProductRate]:
    """Measure matrix products of every shape in every precision."""
    shapes = [
        *((product, True) for product in plan.large_products),
        *((product, False) for product in plan.thin_products),
    ]
    asked = [(dtype, product, is_large) for dtype in plan.dtypes for product, is_large in shapes]
    rates = stopwatch.mean_rates([(product.flops, _product(product, dtype, stopwatch)) for dtype, product, _ in asked])
    return [
        ProductRate(dtype=dtype, product=product, is_large=is_large, flops_per_second=rate)
        for (dtype, product, is_large), rate in zip(asked, rates, strict=True)
    ]


def _product(product: Product, dtype: Dtype, stopwatch: Stopwatch) -> Run:
    left = _random((product.rows, product.depth), dtype, stopwatch)
    right = _random((product.depth, product.columns), dtype, stopwatch)
    out = torch.mm(left, right)  # written again in every run, so that no run allocates memory
    return lambda: torch.mm(left, right, out=out)


def attention_rates(stopwatch: Stopwatch, plan: RatesPlan) -> list[AttentionRate]:
    """Measure fused causal attention, forward and backward, of every shape in every precision."""
    asked = [(dtype, shape) for dtype in plan.dtypes for shape in plan.attention_shapes]
    rates = stopwatch.mean_rates([(shape.flops, _attention(shape, dtype, stopwatch)) for dtype, shape in asked])
    return [
        AttentionRate(dtype=dtype, shape=shape, flops_per_second=rate)
        for (dtype, shape), rate in zip(asked, rates, strict=True)
    ]


def _attention(shape: AttentionShape, dtype: Dtype, stopwatch: Stopwatch) -> Run:
    size = (shape.num_sequences, shape.num_heads, shape.seq_length, shape.head_size)
    query, key, value, gradient = (_random(size, dtype, stopwatch) for _ in range(4))
    inputs = [tensor.requires_grad_() for tensor in (query, key, value)]

    def run() -> None:
        out = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        torch.autograd.grad(out, inputs, gradient)

    return run


def memory_rates(stopwatch: Stopwatch, plan: RatesPlan) -> tuple[MeasuredSpread, MeasuredSpread]:
    """Bytes read and written per second by a copy and by a triad. Source: the counting of the STREAM benchmark."""
    device = stopwatch.world.device
    a, b, c = (torch.rand(plan.memory_bytes // FLOAT32_BYTES, device=device) for _ in range(3))
    num_bytes = a.numel() * FLOAT32_BYTES
    copied, added = stopwatch.mean_rates(
        # A copy reads one tensor and writes one, and a triad reads two and writes one.
        [(2 * num_bytes, lambda: a.copy_(b)), (3 * num_bytes, lambda: torch.add(b, c, alpha=0.5, out=a))]
    )
    return copied, added


def kernel_seconds(stopwatch: Stopwatch, plan: RatesPlan) -> MeasuredSpread:
    """Seconds of one kernel that computes next to nothing.

    A CPU pays every call of a layer in full; a GPU works through calls that were queued while it was busy.
    """
    return _queued_seconds(stopwatch, plan) if plan.kind == "gpu" else _called_seconds(stopwatch, plan)


def _called_seconds(stopwatch: Stopwatch, plan: RatesPlan) -> MeasuredSpread:
    """The time of small layers, forward and backward, divided by the kernels that the cost model counts in them."""
    layers = torch.nn.Sequential(*(Layer(SMALL_LAYER) for _ in range(NUM_SMALL_LAYERS)))
    size = (SMALL_LAYER.seq_length, 1, SMALL_LAYER.hidden_size)
    inputs = torch.rand(size, requires_grad=True)
    (whole,) = stopwatch.slowest_seconds([lambda: layers(inputs).sum().backward()])
    return whole.times(1 / (NUM_SMALL_LAYERS * plan.kernels_per_layer))


def _queued_seconds(stopwatch: Stopwatch, plan: RatesPlan) -> MeasuredSpread:
    """The seconds that small kernels add to a product that is long enough to queue all of them meanwhile."""
    product = _product(plan.large_products[0], plan.dtypes[-1], stopwatch)
    tensor = torch.ones(SMALL, device=stopwatch.world.device)

    def with_small_kernels() -> None:
        product()
        for _ in range(plan.num_small_kernels):
            tensor.mul_(1.0)

    # Behind a long product the host gets ahead. Otherwise its calls would be timed, and not the kernels.
    alone, both = stopwatch.slowest_seconds([product, with_small_kernels])
    added = [max(seconds - alone.median, SHORTEST_SECONDS) for seconds in (both.median, both.lowest, both.highest)]
    return MeasuredSpread(median=added[0], lowest=added[1], highest=added[2]).times(1 / plan.num_small_kernels)


def _random(size: tuple[int, ...], dtype: Dtype, stopwatch: Stopwatch) -> Tensor:
    """Random data: constants would draw less power and let the device clock higher."""
    return torch.rand(size, device=stopwatch.world.device).sub_(0.5).to(DTYPES[dtype])
