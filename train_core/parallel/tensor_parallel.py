"""Tensor and sequence parallelism: linear layers, embedding and loss that are split over the tensor axis.

A column-split layer holds some outputs of a linear layer, a row-split layer some inputs. A column layer followed by a
row layer needs one reduction forward and one backward (arXiv 1909.08053, section 3):

    x  --[ column: rows of w ]-->  this rank's heads or features  --[ row: columns of w ]-->  a summand  --sum--> y

With sequence parallelism the activations between such pairs are sharded along the sequence, and each reduction becomes
a reduce-scatter with an all-gather on the other side (arXiv 2205.05198, section 4.2.2). Shapes: t tensor-parallel size,
else as in `model`.

The functions keep their weight as `ctx.weight`, not through save_for_backward: under recomputation the saved tensor
comes back as a detached alias without its main gradient, and the weight's gradient would silently vanish.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from train_core.model.elementwise import UntransformedFunction, WideNorm
from train_core.model.transformer import Positions, TokenEmbedding
from train_core.parallel.collectives import Axis, all_gather, all_reduce, reduce_scatter, shard
from train_core.parallel.context_parallel import own_tokens
from train_core.parallel.main_gradient import ALONE, add_product, add_rows, add_sum, are_products_deferred
from train_core.parallel.narrow import PLAIN, Products

Gradients = tuple[Tensor | None, ...]


class _Split(NamedTuple):
    """How a linear layer is split. One argument and not three, as torch looks at each that a function takes."""

    axis: Axis
    sequence: bool
    products: Products


class _ColumnLinear(UntransformedFunction):
    """y = x w^T + b; with sequence parallelism x is a shard (s/t, b, h), kept as one and gathered anew in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, split: _Split) -> Tensor:
        ctx.weight, ctx.bias, ctx.split, (axis, sequence, products) = weight, bias, split, split
        ctx.save_for_backward(x)
        whole = all_gather(x, axis).wait() if sequence else x
        out, ctx.largest = products.forward(axis, whole, weight, bias)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Gradients:
        (x,), (axis, sequence, products) = ctx.saved_tensors, ctx.split
        # A product that is put off will gather its input when it is made.
        gathered = all_gather(x, axis) if sequence and not are_products_deferred() else None
        grad_x, multiply = products.backward(axis, grad_out, ctx.weight, ctx.largest)
        x = x if gathered is None else gathered.wait()
        # Started here, so that the product of the weight gradient below hides it; one collective travels at a time.
        reduced = (reduce_scatter if sequence else all_reduce)(grad_x, axis)
        axis_of_x = axis if sequence else ALONE
        grad_weight = add_product(ctx.weight, grad_out, x, axis_of_x=axis_of_x, multiply=multiply)
        grad_bias = None if ctx.bias is None else add_sum(ctx.bias, grad_out)
        return reduced.wait(), grad_weight, grad_bias, None


class _RowLinear(UntransformedFunction):
    """y = sum over the axis of x w^T, plus b; with sequence parallelism y is a shard (s/t, b, h)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, split: _Split) -> Tensor:
        ctx.weight, ctx.bias, ctx.split, (axis, sequence, products) = weight, bias, split, split
        ctx.save_for_backward(x)
        # The bias is added after the sum, or it would be added once by every rank.
        summand, ctx.largest = products.forward(axis, x, weight, bias if axis.size == 1 else None)
        if axis.size == 1:
            return summand
        out = (reduce_scatter if sequence else all_reduce)(summand, axis).wait()
        # In place, because nothing else has the sum, and another tensor of its size would be kept for nothing.
        return out if bias is None else out.add_(bias)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Gradients:
        (x,), (axis, sequence, products) = ctx.saved_tensors, ctx.split
        gathered = all_gather(grad_out, axis) if sequence else None
        # From the shard, while the whole is on its way: such a bias is summed over the tensor axis before the update.
        grad_bias = None if ctx.bias is None else add_sum(ctx.bias, grad_out)
        whole = grad_out if gathered is None else gathered.wait()
        # Every rank has all of it.
        grad_x, multiply = products.backward(ALONE, whole, ctx.weight, ctx.largest)
        # A product that is put off keeps the shard, and gathers it anew when it is made.
        kept, axis_of_kept = (grad_out if are_products_deferred() else whole), (axis if sequence else ALONE)
        grad_weight = add_product(ctx.weight, kept, x, axis_of_grad_out=axis_of_kept, multiply=multiply)
        return grad_x, grad_weight, grad_bias, None


class _VocabularyEmbedding(UntransformedFunction):
    """Each rank looks up the tokens whose rows it holds; the sum over the axis has them all."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor, axis: Axis, sequence: bool) -> Tensor:
        rows, elsewhere = _local_rows(tokens, weight.size(0), axis)
        ctx.axis, ctx.sequence, ctx.weight, ctx.rows, ctx.elsewhere = axis, sequence, weight, rows, elsewhere
        vectors = functional.embedding(rows, weight)
        if elsewhere is None:
            return vectors
        # Tokens of other ranks were looked up as row 0. Their vectors come from those ranks, by the sum.
        vectors.masked_fill_(elsewhere[..., None], 0.0)
        return (reduce_scatter if sequence else all_reduce)(vectors, axis).wait()

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Gradients:
        if ctx.sequence:
            # A rank holds rows of tokens that stand anywhere in the sequence, and so needs the gradient of all of it.
            grad_out = all_gather(grad_out, ctx.axis).wait()
        return None, add_rows(ctx.weight, grad_out, ctx.rows, ctx.elsewhere), None, None


class _VocabularyCrossEntropy(UntransformedFunction):
    """Mean cross-entropy of logits (s, b, V/t), by one collective, which gathers a few numbers of every token.

    One fp32 tensor of the logits' size serves from the logits to their gradient, because no other tensor of a step is
    as large. So backward can run only once, and fp32 logits, which nothing else reads, are overwritten. The gradient is
    of a loss that has `z_loss` times the mean square of the log-sum-exp in it (arXiv 2204.02311, section 5).
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, axis: Axis, cap: float | None = None, z_loss: float = 0.0
    ) -> Tensor:
        rows, elsewhere = _local_rows(targets, logits.size(-1), axis)
        values = logits.float()
        if cap is not None:
            values = values.div_(cap).tanh_().mul_(cap)
        target_logits = values.gather(-1, rows[..., None])[..., 0]
        if elsewhere is not None:
            target_logits = target_logits.masked_fill(elsewhere, 0.0)
        # Relative to the largest logit, because the exponential of a large one would overflow.
        largest = values.amax(-1)
        exponentials = values.sub_(largest[..., None]).exp_()
        # Each rank has exponentials relative to its own largest logit, and rescales the sums of all to the overall one.
        parts = torch.stack((largest, exponentials.sum(-1), target_logits))[None]  # (1, 3, s, b)
        all_largest, all_sums, all_targets = all_gather(parts, axis).wait().unbind(1)  # each (t, s, b)
        peak = all_largest.amax(0)
        denominator = (all_sums * (all_largest - peak).exp()).sum(0)
        to_softmax = (largest - peak).exp() / denominator
        if z_loss:  # the gradient of the square is the softmax times this
            to_softmax *= 1 + 2 * z_loss * (denominator.log() + peak)
        ctx.save_for_backward(exponentials, to_softmax, rows, *(() if cap is None else (largest,)))
        ctx.elsewhere, ctx.dtype, ctx.cap = elsewhere, logits.dtype, cap
        return (denominator.log() - (all_targets.sum(0) - peak)).mean()  # large logits cancel exactly here

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Gradients:
        exponentials, to_softmax, rows, *largest = ctx.saved_tensors
        slope = None
        if largest:  # of the cap, 1 - tanh^2, from the capped logits that the exponentials are of
            slope = exponentials.log().add_(largest[0][..., None]).div_(ctx.cap).square_().neg_().add_(1)
        # The gradient is the softmax, less one at the target, over the number of tokens. What was saved becomes it.
        of_target = (-grad_out / rows.numel()).expand(rows.shape)
        gradient = exponentials.mul_((to_softmax * -of_target)[..., None])
        if ctx.elsewhere is not None:
            of_target = of_target.masked_fill(ctx.elsewhere, 0.0)
        gradient.scatter_add_(-1, rows[..., None], of_target[..., None])
        return (gradient if slope is None else gradient.mul_(slope)).to(ctx.dtype), None, None, None, None


class _SharedByHeads(UntransformedFunction):
    """What all heads share; backward, its gradient is the sum over the axis, whose ranks have other heads."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, sequence: bool) -> Tensor:
        ctx.axis, ctx.sequence = axis, sequence
        # A view, because autograd does not let a function return its own input as it is.
        return all_gather(x, axis).wait() if sequence else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Gradients:
        return (reduce_scatter if ctx.sequence else all_reduce)(grad_out, ctx.axis).wait(), None, None


def _local_rows(tokens: Tensor, num_rows: int, axis: Axis) -> tuple[Tensor, Tensor | None]:
    """Row of each token in this rank's part of the vocabulary, and the mask of tokens held by other ranks."""
    if axis.size == 1:
        return tokens, None
    rows = tokens - axis.rank * num_rows
    elsewhere = (rows < 0) | (rows >= num_rows)
    # Row 0 exists on every rank. What is looked up there for other ranks' tokens is masked out by the caller.
    return rows.masked_fill(elsewhere, 0), elsewhere


class ColumnParallelLinear(nn.Module):
    """Holds rows of the weight: (s, b, h) -> (s, b, out/t), from (s/t, b, h) with sequence parallelism."""

    def __init__(self, whole: nn.Linear, axis: Axis, sequence: bool, products: Products = PLAIN) -> None:
        super().__init__()
        self.split = _Split(axis, sequence, products)
        self.weight = nn.Parameter(shard(whole.weight.detach(), axis))
        self.bias = nn.Parameter(shard(whole.bias.detach(), axis)) if whole.bias is not None else None

    def forward(self, x: Tensor) -> Tensor:
        return _ColumnLinear.apply(x, self.weight, self.bias, self.split)


class RowParallelLinear(nn.Module):
    """Holds columns of the weight: (s, b, in/t) -> (s, b, h), to (s/t, b, h) with sequence parallelism."""

    def __init__(self, whole: nn.Linear, axis: Axis, sequence: bool, products: Products = PLAIN) -> None:
        super().__init__()
        self.split = _Split(axis, sequence, products)
        self.weight = nn.Parameter(shard(whole.weight.detach(), axis, dim=1))
        self.bias = whole.bias

    def forward(self, x: Tensor) -> Tensor:
        return _RowLinear.apply(x, self.weight, self.bias, self.split)


class SharedKey(nn.Module):
    """Brings all ranks the part of keys that heads share: (s, b, r), from (s/t, b, r) with sequence parallelism."""

    def __init__(self, axis: Axis, sequence: bool) -> None:
        super().__init__()
        self.axis, self.sequence = axis, sequence

    def forward(self, x: Tensor) -> Tensor:
        return _SharedByHeads.apply(x, self.axis, self.sequence)


def norm_over_heads(whole: WideNorm, axis: Axis) -> WideNorm:
    """The norm of what all ranks' heads are together: each sums over its own, and has their weights."""
    whole.weight = nn.Parameter(shard(whole.weight.detach(), axis))
    whole.over_heads = lambda sums: all_reduce(sums, axis).wait()
    return whole


class VocabularyParallelEmbedding(nn.Module):
    """Holds rows of the token embedding: ids (s, b) -> (s, b, h), to (s/t, b, h) with sequence parallelism."""

    def __init__(self, whole: TokenEmbedding, axis: Axis, sequence: bool) -> None:
        super().__init__()
        self.axis, self.sequence = axis, sequence
        self.weight = nn.Parameter(shard(whole.weight.detach(), axis))

    def forward(self, tokens: Tensor) -> Tensor:
        return _VocabularyEmbedding.apply(tokens, self.weight, self.axis, self.sequence)


class SequenceShardedPositions(nn.Module):
    """Learned positions, held whole; adds those of this rank's part of the sequence: (s/t, b, h) -> (s/t, b, h)."""

    def __init__(self, whole: Positions, sequence: Axis, context: Axis) -> None:
        super().__init__()
        self.sequence, self.context, self.weight = sequence, context, whole.weight

    def forward(self, vectors: Tensor, positions: Tensor | None = None) -> Tensor:
        """`positions` (n, b) of this context rank's tokens is given where they differ from sequence to sequence."""
        if positions is None:
            return vectors + shard(own_tokens(self.weight, self.context), self.sequence)[:, None]
        of_positions: Tensor = _VocabularyEmbedding.apply(shard(positions, self.sequence), self.weight, ALONE, False)
        return vectors + of_positions


class VocabularyParallelCrossEntropy(nn.Module):
    """The loss over logits that are split over the vocabulary: (s, b, V/t), (s, b) -> scalar."""

    def __init__(self, axis: Axis, cap: float | None = None) -> None:
        super().__init__()
        self.axis, self.cap, self.z_loss = axis, cap, 0.0

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return _VocabularyCrossEntropy.apply(logits, targets, self.axis, self.cap, self.z_loss)
