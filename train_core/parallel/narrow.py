"""Narrow numbers: matrix products in fp8, sums into fp32 or less, and the scale of the loss that fp16 needs.

Both operands of a product in fp8 are cast with a scale, multiplied, and the scales taken off the result.

    forward              y  = x w^T       x and w in e4m3
    gradient of x        dx = dy w        dy in e5m2 where there is one scale for a tensor, as its range is wide
    gradient of w        dw = dy^T x      added up in the type of the main gradient

    fp8-tensorwise       one scale for an operand, from its largest value; that of all tensor ranks, of which each may
                         have a part, so that every number of them rounds alike. It is exchanged once for all products
                         of an operand: x and w forward, and dy where ranks have parts of it
    fp8-rowwise          one for every row along which a product adds up, from this rank's part of it

Scales follow from what an operand holds now (current scaling), so that there is no state to save. Weights stay what
they are, with fp32 masters. Embedding, head, norms, the attention core, and as many layers at each end of the model as
`precision.wide_layers` says multiply in the type of the weights. Where a device has no such products, the same operands
are multiplied in fp32 (`precision.emulate`). Sources: arXiv 2209.05433; torchao, float8_scaling_utils.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from conf.errors import ConfigError
from conf.types.schema import PrecisionPlan
from train_core.parallel.collectives import Axis, all_gather

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
LEAST = 1e-12
"""The least size of a largest value: a tensor of zeros has a scale, too. Source: torchao, EPS."""
MULTIPLE = 16
"""The kernels take operands whose rows are so many elements, or a multiple of it."""


Multiply = Callable[[Tensor, Tensor, torch.dtype], Tensor]
"""Makes a product in the named type."""
Largest: TypeAlias = "tuple[Tensor | None, ...]"
"""The largest value of each operand, on all ranks that have a part of it; None where a cast finds its own."""
UNKNOWN: Largest = (None, None)


class Products:
    """The products of a linear layer, in the type of its weight."""

    def forward(self, axis: Axis, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Largest]:
        """x w^T + b, and the largest values of x and w, of which the ranks of `axis` may have parts."""
        return functional.linear(x, weight, bias), UNKNOWN

    def backward(
        self, axis: Axis, grad_out: Tensor, weight: Tensor, largest: Largest
    ) -> tuple[Tensor, Multiply | None]:
        """dy w, and what makes dy^T x, from what `forward` found; `axis` is of the ranks that have parts of dy."""
        return grad_out @ weight, None


PLAIN = Products()


@dataclass(frozen=True)
class ScaledProducts(Products):
    """The products of a linear layer, from operands that are cast.

    Attributes:
        by_rows: every row has a scale; else a whole operand has one.
        emulate: multiply the cast operands in fp32.
        compiles: casts are compiled, so that one kernel reads an operand and writes it narrow, in the order that the
            product wants.
    """

    by_rows: bool
    emulate: bool
    compiles: bool = False

    def forward(self, axis: Axis, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Largest]:
        largest = self.largest(axis, x, weight)
        return self.linear(x, weight, bias, largest), largest

    def backward(self, axis: Axis, grad_out: Tensor, weight: Tensor, largest: Largest) -> tuple[Tensor, Multiply]:
        (of_grad,), (of_x, of_weight) = self.largest(axis, grad_out), largest
        return self.input_gradient(grad_out, weight, (of_grad, of_weight)), self.multiply((of_grad, of_x))

    def largest(self, axis: Axis, *operands: Tensor) -> Largest:
        """The largest values of operands of which the ranks of `axis` may have parts, exchanged at once."""
        if self.by_rows:  # rows have other values in every product
            return (None,) * len(operands)
        own = torch.stack([largest_values(operand) for operand in operands])
        return all_gather(own[None], axis).wait().amax(0).unbind()

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, largest: Largest = UNKNOWN) -> Tensor:
        """x w^T + b, from (..., in)."""
        out = self._product(x.flatten(0, -2), weight, largest, x.dtype).view(*x.shape[:-1], -1)
        return out if bias is None else out.add_(bias)

    def input_gradient(self, grad_out: Tensor, weight: Tensor, largest: Largest = UNKNOWN) -> Tensor:
        """dy w, from (..., out)."""
        product = self._product(grad_out.flatten(0, -2), weight.t(), largest, grad_out.dtype, of_gradient=True)
        return product.view(*grad_out.shape[:-1], -1)

    def weight_gradient(self, left: Tensor, right: Tensor, dtype: torch.dtype, largest: Largest = UNKNOWN) -> Tensor:
        """dy^T x, from (out, n) and (n, in)."""
        # The kernel adds up along n in whole blocks, and an expert has as many rows as tokens chose it.
        if not self.emulate and (missing := -left.size(1) % MULTIPLE):
            left, right = functional.pad(left, (0, missing)), functional.pad(right, (0, 0, 0, missing))
        return self._product(left, right.t(), largest, dtype, of_gradient=True)

    def multiply(self, largest: Largest = UNKNOWN) -> Multiply:
        """The product for a weight's gradient; `largest` is of the output's gradient and of the input."""
        return partial(self.weight_gradient, largest=largest)

    def _product(
        self, a: Tensor, b: Tensor, largest: Largest, dtype: torch.dtype, *, of_gradient: bool = False
    ) -> Tensor:
        """a b^T in `dtype`, from (m, k) and (n, k)."""
        own = 1 if self.by_rows else None
        of_each = zip((a, b), largest, strict=True)
        largest_a, largest_b = (largest_values(each, own) if known is None else known for each, known in of_each)
        of_a = E5M2 if of_gradient and not self.by_rows else E4M3
        a, scale_a = cast(a, largest_a, of_a, compiles=self.compiles)
        b, scale_b = cast(b, largest_b, E4M3, compiles=self.compiles)
        scale_b = scale_b.t() if self.by_rows else scale_b
        if self.emulate:
            return (a.float() @ b.float().t()).mul_(scale_a).mul_(scale_b).to(dtype)
        # With scales by rows the kernel writes bf16 alone.
        out_dtype = torch.bfloat16 if self.by_rows else dtype
        return torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=out_dtype).to(dtype)


def largest_values(tensor: Tensor, dim: int | None = None) -> Tensor:
    """The largest absolute value of a matrix (m, k), or of every row with `dim` 1: (m, 1)."""
    # Without a copy of absolute values.
    least, most = tensor.aminmax() if dim is None else tensor.aminmax(dim=dim, keepdim=True)
    return torch.maximum(-least, most).float()


def cast(tensor: Tensor, largest: Tensor, dtype: torch.dtype, *, compiles: bool = False) -> tuple[Tensor, Tensor]:
    """A tensor scaled up to the range of `dtype`, in row-major order, and the factor that undoes the scale."""
    scale = torch.finfo(dtype).max / largest.clamp(min=LEAST)
    return (_compiled_cast() if compiles else _scaled_cast)(tensor, scale, dtype), scale.reciprocal()


def _scaled_cast(tensor: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    most = torch.finfo(dtype).max
    # Clamped, since the largest value times its scale may be rounded up beyond the range.
    return (tensor.float() * scale).clamp_(-most, most).to(dtype).contiguous()


@cache
def _compiled_cast() -> Callable[[Tensor, Tensor, torch.dtype], Tensor]:
    # Operands of a layer have a dozen shapes, for each of which there would be code of its own.
    return torch.compile(_scaled_cast, dynamic=True)


def narrow_products(
    precision: PrecisionPlan, name: str, num_layers: int, *, compiles: bool = False
) -> ScaledProducts | None:
    """The form of the products of the module with this name in the whole model; None multiplies in its own type."""
    group, _, rest = name.partition(".")
    if precision.matmul_recipe is None or group != "layers":
        return None
    index, wide = int(rest.partition(".")[0]), precision.wide_layers
    if not wide <= index < num_layers - wide:
        return None
    return ScaledProducts(precision.matmul_recipe == "fp8-rowwise", precision.emulate, compiles)


def require_narrow_products(precision: PrecisionPlan, device: torch.device) -> None:
    """Try a product out, because that depends on the device, its libraries and the release of torch.

    Raises:
        ConfigError: the device has none, and nobody asked for an emulation.
    """
    if precision.matmul_recipe is None or precision.emulate:
        return
    zeros = torch.zeros(MULTIPLE, MULTIPLE, dtype=torch.bfloat16, device=device)
    try:
        ScaledProducts(precision.matmul_recipe == "fp8-rowwise", emulate=False).linear(zeros, zeros, None)
    except (RuntimeError, TypeError) as error:
        problem = f"is not multiplied by torch {torch.__version__} on this device ({str(error).splitlines()[0]})"
        remedy = "Use precision.matmul_recipe=null, or precision.emulate=true, which rounds alike and is slower."
        raise ConfigError("precision.matmul_recipe", precision.matmul_recipe, problem, remedy) from None


def has_wide_products(dtype: torch.dtype, device: torch.device) -> bool:
    """True if the device multiplies matrices of a narrow type and adds the product to one in fp32, in one kernel.

    It is tried out, because that depends on the device, its library of products and the release of torch.
    """
    factor, buffer = torch.zeros(16, 16, dtype=dtype, device=device), torch.zeros(16, 16, device=device)
    try:
        add_wide_product(buffer, factor, factor)
    except (RuntimeError, TypeError):  # a kernel that is not there, or does not take these types, or an older signature
        return False
    return True


def add_wide_product(buffer: Tensor, left: Tensor, right: Tensor) -> None:
    torch.addmm(buffer, left, right, out_dtype=buffer.dtype, out=buffer)


def add_to_rows(table: Tensor, grad_out: Tensor, rows: Tensor, elsewhere: Tensor | None) -> None:
    """Add every vector of grad_out (..., h) to its row of a table (rows, h), but those that are elsewhere.

    Into less than fp32 a row is added once, as the sum of its vectors: a GPU would round after each of a frequent
    token's. That takes 10 bytes for every element of grad_out for a while, and not a second table.
    """
    indices, vectors = rows.flatten(), _in_fp32(grad_out, elsewhere).flatten(0, -2)
    if table.dtype != torch.float32:
        vectors = _sums_by_row(vectors, indices, table.size(0)).to(table.dtype)
    _add_at(table, indices, vectors)


def _in_fp32(vectors: Tensor, elsewhere: Tensor | None) -> Tensor:
    """The vectors, with zeros in place of those that are elsewhere."""
    if elsewhere is None:
        return vectors.float()
    if vectors.dtype == torch.float32:
        return vectors.masked_fill(elsewhere[..., None], 0.0)
    return vectors.float().masked_fill_(elsewhere[..., None], 0.0)  # in place, in the copy that has just been made


def _sums_by_row(vectors: Tensor, rows: Tensor, num_rows: int) -> Tensor:
    """Vectors (n, h) in fp32, where one vector of each row holds the sum of all of that row and the others hold zeros.

    Whichever vector's number is written to the row's place last is the one that holds the sum. A sort or a count would
    make the host wait for the device.
    """
    numbers = torch.arange(rows.numel(), device=rows.device)
    chosen = rows.new_empty(num_rows).scatter_(0, rows, numbers)
    return _add_at(torch.zeros_like(vectors), chosen[rows], vectors)


def _add_at(table: Tensor, rows: Tensor, vectors: Tensor) -> Tensor:
    if table.is_cuda:
        # In the order of the rows, as torch's own embedding does. Atomic sums would come in another one on each rank,
        # and copies of one table would drift apart by their rounding.
        return table.index_put_((rows,), vectors, accumulate=True)
    return table.index_add_(0, rows, vectors)


BACKOFF, GROWTH = 0.5, 2.0  # powers of two, so that scaling changes exponents alone and no digits
STATE = ("scale", "num_good_steps", "num_overflows_in_a_row")


@dataclass
class LossScale:
    """The factor of the loss, and how the last steps went under it.

    It halves at every overflow and doubles after `window` steps without one. Source: arXiv 1710.03740, section 3.2.

    Attributes:
        window: so many steps without an overflow double the scale; None where it is constant.
        scale: the factor of the loss; 1 and constant where the precision is not fp16.
        num_good_steps: steps without an overflow since the scale last changed.
        num_overflows_in_a_row: how many steps up to the last one were skipped.
    """

    window: int | None
    scale: float
    num_good_steps: int = 0
    num_overflows_in_a_row: int = 0

    @classmethod
    def of(cls, plan: PrecisionPlan) -> LossScale:
        if plan.dtype != "fp16":
            return cls(window=None, scale=1.0)
        return cls(plan.loss_scale_window, plan.initial_loss_scale)

    @property
    def is_dynamic(self) -> bool:
        return self.window is not None

    def back_off(self) -> None:
        self.scale *= BACKOFF
        self.num_good_steps = 0
        self.num_overflows_in_a_row += 1

    def note_success(self) -> None:
        self.num_overflows_in_a_row = 0
        self.num_good_steps += 1
        if self.window is not None and self.num_good_steps >= self.window:  # more where a longer window was resumed
            self.scale *= GROWTH
            self.num_good_steps = 0

    def state(self) -> dict[str, float]:
        """The values that a checkpoint keeps; empty where the scale is constant."""
        return {name: getattr(self, name) for name in STATE} if self.is_dynamic else {}

    def restore(self, state: dict[str, float]) -> None:
        """Go on with the state of a checkpoint, where both trainings scale their loss."""
        if self.is_dynamic:
            for name, value in state.items():
                setattr(self, name, type(getattr(self, name))(value))  # JSON's numbers are floats
