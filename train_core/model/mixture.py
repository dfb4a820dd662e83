"""A mixture of experts in the place of a layer's feed-forward network, in plain modules.

    tokens --[ router ]--> the `top_k` experts of each token, and their weights
       |
       +--[ experts ]--> each token through its experts, times their weights --sum--+
       +--[ shared ]---> every token, where a model has such an expert -------------+--> out

No token is dropped, unless the model names a capacity, and none is padded. As elsewhere in `model`, nothing here knows
that it may run in parallel: by their names `experts` becomes a module that holds some of them, `shared` is split like
any feed-forward network, and `balance` and `capacity` learn whose tokens make up a sequence. Shapes: s sequence, b
micro-batch, h hidden, f width of an expert, E experts, k those of a token, n = s b k rows.

Sources: arXiv 2401.04088 (Mixtral), section 2.1; arXiv 2412.19437 (DeepSeek-V3), section 2.1.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from conf.types.model_spec import ExpertsSpec, ModelSpec
from train_core.model.elementwise import GELU, SIGMOID_GELU, SILU, Activation, UntransformedFunction

SumOverSequence = Callable[[Tensor], Tensor]
"""Sums over all who have tokens of the same sequences."""


class Routes(NamedTuple):
    """The experts of some tokens: both (tokens, k), the weights in fp32."""

    weights: Tensor
    experts: Tensor


class _BalanceLoss(UntransformedFunction):
    """Hands the probabilities on; backward, adds the gradient of a loss that is least where experts get equal shares.

    The loss of a sequence is `coefficient * E * sum over experts of (share of its choices - 1/E) (mean probability)`.
    It is taken by sequence, and so does not depend on the layout; shares are counted over the whole sequence.
    """

    @staticmethod
    def forward(ctx: Any, probabilities: Tensor, shares: Tensor, weight: float) -> Tensor:
        ctx.save_for_backward(shares)
        ctx.weight = weight
        # A view, because autograd does not let a function return its own input as it is.
        return probabilities.view_as(probabilities)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None, None]:
        (shares,) = ctx.saved_tensors
        return grad_out + shares * ctx.weight, None, None


class Balance(nn.Module):
    """Adds the balance loss to the gradient of a router's probabilities (s, b, E).

    Attributes:
        gradient_scale: the factor of every micro-batch's loss before backward, which who runs the passes sets.
        over_sequence: sums over the ranks that have tokens of the same sequences.
        num_parts: how many ranks these are; of them `num_in_loss` have tokens of one and the same mean loss.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        assert spec.experts is not None
        self.coefficient, self.top_k = spec.experts.balance_loss, spec.experts.top_k
        self.gradient_scale = 1.0
        self.over_sequence: SumOverSequence = lambda counts: counts
        self.num_parts = self.num_in_loss = 1

    def forward(self, probabilities: Tensor, chosen: Tensor) -> Tensor:
        """`chosen` (s, b, k) holds the experts of each token."""
        if not (self.coefficient and torch.is_grad_enabled()):
            return probabilities
        num_tokens, batch, num_experts = probabilities.shape
        ones = torch.ones((), device=chosen.device).expand(num_tokens, batch, self.top_k)
        counts = ones.new_zeros(num_tokens, batch, num_experts).scatter_add_(-1, chosen, ones).sum(0)  # (b, E)
        # Shares come from choices, which have no gradient: the loss is lowered through the mean probabilities alone.
        # These add up to one, so that what all shares have in common moves nothing. Without the even share the sum is
        # not rounded to the size of a constant that the scores' gradient has to cancel.
        shares = self.over_sequence(counts) / (num_tokens * self.num_parts * self.top_k) - 1 / num_experts
        weight = self.coefficient * num_experts / (num_tokens * self.num_in_loss * batch) * self.gradient_scale
        return _BalanceLoss.apply(probabilities, shares, weight)


class Capacity(nn.Module):
    """Says for which choices of experts (s, b, k) these have room: (s, b, k), true or false.

    An expert takes at most so many times its even share of each sequence, those that come first. By sequence, and not
    by micro-batch, so that what is dropped depends on no layout and on no other sequence; those that come first, so
    that it depends on no later token.

    Attributes:
        gather: whole sequences, in order, from the choices of all who have tokens of them.
        own: of whole sequences, what is of this rank's tokens.
    """

    def __init__(self, spec: ExpertsSpec) -> None:
        super().__init__()
        assert spec.capacity_factor is not None
        self.factor, self.num_experts = spec.capacity_factor, spec.num_experts
        self.gather: Callable[[Tensor], Tensor] = lambda chosen: chosen
        self.own: Callable[[Tensor], Tensor] = lambda whole: whole

    def forward(self, chosen: Tensor) -> Tensor:
        whole = self.gather(chosen)
        num_tokens, batch, top_k = whole.shape
        room = math.ceil(self.factor * num_tokens * top_k / self.num_experts)
        choices = whole.new_zeros(num_tokens, batch, self.num_experts).scatter_(-1, whole, 1)
        # How many have chosen the expert so far, the token itself among them.
        return self.own(choices.cumsum(0).gather(-1, whole) <= room)


class _Scores(UntransformedFunction):
    """The product of tokens (s, b, h) and a router's weight (E, h) in fp32 -> (s, b, E); keeps tokens as they came."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias_dtype = None if bias is None else bias.dtype
        return functional.linear(x.float(), weight.float(), None if bias is None else bias.float())

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_weight = grad_out.flatten(0, 1).t() @ x.flatten(0, 1).float()
        grad_bias = None if ctx.bias_dtype is None else grad_out.sum((0, 1)).to(ctx.bias_dtype)
        return (grad_out @ weight.float()).to(x.dtype), grad_weight.to(weight.dtype), grad_bias


NOTHING = 1e-18
"""Added to a sum of scores, as all sigmoids of a token may be 0 in fp32; its square, by which the gradient is divided,
is still a number there. Source: DeepSeek-V3 adds 1e-20 (modeling_deepseek.py)."""


class Router(nn.Module):
    """Chooses experts by the scores of a product in fp32: (s, b, h) -> routes of s b tokens.

    The weights of a token's experts are scaled to add up to one, as Mixtral and Qwen3-MoE do, or to a factor of the
    model, as DeepSeek-V3 does.

    Attributes:
        bias: is added to the scores (E) where experts are chosen, and not where they weigh; None where nothing is.
        score_bias: is trained, and added to the products themselves; None where the model has none.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        assert spec.experts is not None
        self.top_k, self.scale = spec.experts.top_k, spec.experts.routed_scale
        self.num_groups, self.top_groups = spec.experts.num_groups, spec.experts.top_groups
        self.weight = nn.Parameter(torch.empty(spec.experts.num_experts, spec.hidden_size))
        biased = "router_bias" in spec.parts
        self.score_bias = nn.Parameter(torch.empty(spec.experts.num_experts)) if biased else None
        self.balance = Balance(spec)
        self.is_sigmoid = spec.experts.scores == "sigmoid"
        self.bias: Tensor | None = None

    def forward(self, x: Tensor) -> Routes:
        products: Tensor = _Scores.apply(x, self.weight, self.score_bias)
        scores = products.sigmoid() if self.is_sigmoid else products.softmax(-1)
        preferences = scores.detach() if self.bias is None else scores.detach() + self.bias
        if self.top_groups < self.num_groups:
            preferences = in_best_groups(preferences, self.num_groups, self.top_groups)
        chosen = preferences.topk(self.top_k, dim=-1).indices
        # The balance loss is one of probabilities, and the weights below are the same whether these are scaled or not.
        probabilities = scores / (scores.sum(-1, keepdim=True) + NOTHING) if self.is_sigmoid else scores
        weights = self.balance(probabilities, chosen).gather(-1, chosen)
        # After the balance loss, whose gradient is that of the probabilities of all experts.
        weights = weights / (weights.sum(-1, keepdim=True) + NOTHING)
        if self.scale != 1:
            weights = weights * self.scale
        return Routes(weights.flatten(0, 1), chosen.flatten(0, 1))


def in_best_groups(preferences: Tensor, num_groups: int, num_best: int) -> Tensor:
    """The preferences (s, b, E) of tokens for experts of their best groups; minus infinity for all others.

    A group, of neighbouring experts, is as good as its two best together. Source: arXiv 2412.19437, section 2.1.2.
    """
    groups = preferences.unflatten(-1, (num_groups, -1))
    goodness = groups.topk(min(2, groups.size(-1)), dim=-1).values.sum(-1)
    best = goodness.topk(num_best, dim=-1).indices
    is_other = torch.ones_like(goodness, dtype=torch.bool).scatter_(-1, best, False)
    masked: Tensor = groups.masked_fill(is_other[..., None], -torch.inf)
    return masked.flatten(-2)


class Gating(NamedTuple):
    """How an expert's gate goes with what it gates.

    Attributes:
        limit: the gate is at most this; what it gates is clamped to it on both sides, and then one more. None: neither.
    """

    activation: Activation = SILU
    limit: float | None = None

    @classmethod
    def of(cls, spec: ModelSpec) -> Gating:
        if "capped_activation" in spec.parts:  # source: openai/gpt-oss, model.py, `swiglu`
            return cls(SIGMOID_GELU, 7.0)
        return cls(GELU if "gelu" in spec.parts else SILU)

    def limited(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = x.chunk(2, -1)
        if self.limit is None:
            return gate, up
        return gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit).add_(1)

    def take_off_what_was_limited(self, gradients: Tensor, x: Tensor) -> Tensor:
        if self.limit is not None:
            (of_gate, of_up), (gate, up) = gradients.chunk(2, -1), x.chunk(2, -1)
            of_gate.mul_(gate <= self.limit)
            of_up.mul_(up.abs() <= self.limit)
        return gradients


PLAIN = Gating()


class _GatedAndWeighted(UntransformedFunction):
    """See `weighted_gated_product`; keeps only its arguments."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, gating: Gating) -> Tensor:
        ctx.save_for_backward(x, weights)
        ctx.gating, (gate, up) = gating, gating.limited(x)
        return gating.activation.forward(gate).mul_(up).mul_(weights[:, None].to(x.dtype))

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        (x, weights), gating = ctx.saved_tensors, ctx.gating
        # The activated gate is computed again, which costs less than to keep it for every row of every layer.
        (gate, up), wide = gating.limited(x), weights[:, None].to(x.dtype)
        with_gate = gating.activation.forward(gate).mul_(grad_out)
        grad_weights = (with_gate * up).sum(-1, dtype=weights.dtype)
        grad_gate = gating.activation.backward(grad_out * up * wide, gate)
        whole = torch.cat((grad_gate, with_gate.mul_(wide)), -1)
        return gating.take_off_what_was_limited(whole, x), grad_weights, None


def weighted_gated_product(x: Tensor, weights: Tensor, gating: Gating = PLAIN) -> Tensor:
    """activation(gate) * up * weight: (n, 2f) and (n) -> (n, f).

    Rows are weighted here and not when they are added up, because results would have to be kept for that: as many
    bytes again as the tokens that experts get.
    """
    return _GatedAndWeighted.apply(x, weights, gating)


class _Sum(UntransformedFunction):
    """Adds up the rows (n, h) of each of so many tokens; keeps no row, as torch's own function does."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, of_token: Tensor, num_tokens: int) -> Tensor:
        ctx.save_for_backward(of_token)
        return rows.new_zeros(num_tokens, rows.size(1)).index_add_(0, of_token, rows)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None, None]:
        (of_token,) = ctx.saved_tensors
        return grad_out.index_select(0, of_token), None, None


class ExpertWeights(nn.Module):
    """The matrices of one product of all experts, one below the other (E out, in), and their biases (E out), if any."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)


class Experts(nn.Module):
    """All experts of a layer, each a gated feed-forward network: rows (n, h) in the order of experts."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        assert spec.experts is not None
        self.num_experts, width = spec.experts.num_experts, spec.experts.ffn_hidden_size
        self.gating, sizes = Gating.of(spec), ((2 * width, spec.hidden_size), (spec.hidden_size, width))
        self.up, self.down = (
            ExpertWeights(
                torch.empty(self.num_experts * columns, depth),
                torch.empty(self.num_experts * columns) if spec.has_mlp_bias else None,
            )
            for columns, depth in sizes
        )

    def forward(self, tokens: Tensor, of_token: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
        """Tokens (t, h), the token of each row (n), the weight of each (n), and how many are for each expert (E).

        Rows behind those that are counted are for none, and have no result.
        """
        [sizes] = on_host(counts[None], of_token.size(0))
        of_token, weights = of_token[: sum(sizes)], weights[: sum(sizes)]
        rows = _products(tokens.index_select(0, of_token), self.up, sizes)
        hidden = weighted_gated_product(rows, weights, self.gating)
        return _products(hidden, self.down, sizes, weights)


def count_by_expert(chosen: Tensor, num_experts: int) -> Tensor:
    """The number of rows (n) that are for each expert: (E). torch's own count would make the host wait."""
    return chosen.new_zeros(num_experts).scatter_add_(0, chosen, torch.ones_like(chosen))


def on_host(counts: Tensor, num_rows: int) -> list[list[int]]:
    """Values of `counts` (ranks, E), for which the host waits: the rows that each rank has for each expert.

    Where tensors have no values, as in a rehearsal, each rank has `num_rows`, as many for each expert as for another.
    """
    if not (counts.is_meta or isinstance(counts, FakeTensor)):
        return counts.tolist()
    # Bounds are rounded down, so that shares differ by at most one row and add up to all of them.
    ends = [num_rows * expert // counts.size(1) for expert in range(counts.size(1) + 1)]
    return [[end - start for start, end in pairwise(ends)]] * counts.size(0)


def _products(rows: Tensor, of_all: ExpertWeights, sizes: list[int], weights: Tensor | None = None) -> Tensor:
    """Rows times the matrix of each expert; where rows have been weighted before, `weights` are those of biases."""
    matrices = of_all.weight.view(len(sizes), -1, of_all.weight.size(1))
    out = torch.cat([part @ matrix.t() for part, matrix in zip(rows.split(sizes), matrices, strict=True)])
    if of_all.bias is None:
        return out
    expert = torch.arange(len(sizes), device=rows.device).repeat_interleave(torch.tensor(sizes, device=rows.device))
    biases = of_all.bias.view(len(sizes), -1)[expert]
    return out + (biases if weights is None else biases * weights[:, None].to(out.dtype))


class MixtureOfExperts(nn.Module):
    """Sends every token through the experts that its router chooses: (s, b, h) -> (s, b, h).

    Attributes:
        rows_of_experts: how many rows were for each expert (E) in passes of this rank that have a backward pass, until
            somebody takes it; None where there was no such pass since. A forward pass that is repeated counts twice.
        num_dropped: how many of these found no room; None also where the model names no capacity.
    """

    def __init__(self, spec: ModelSpec, shared: nn.Module | None, dropout: nn.Module | None) -> None:
        """`shared` is the expert that every token passes through, None where there is none."""
        super().__init__()
        assert spec.experts is not None
        self.num_experts = spec.experts.num_experts
        self.router = Router(spec)
        self.experts: nn.Module = Experts(spec)
        self.shared = shared
        self.dropout = dropout
        self.capacity = Capacity(spec.experts) if spec.experts.capacity_factor is not None else None
        self.forget_rows()

    def forget_rows(self) -> None:
        self.rows_of_experts: Tensor | None = None
        self.num_dropped: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        tokens, routes = x.flatten(0, 1), self.router(x)
        chosen, k = routes.experts.flatten(), routes.experts.size(1)
        counts = count_by_expert(chosen, self.num_experts)
        if torch.is_grad_enabled():
            self.rows_of_experts = counts if self.rows_of_experts is None else self.rows_of_experts + counts
        if self.capacity is not None:
            has_room = self.capacity(routes.experts.view(*x.shape[:2], k)).flatten()
            # The rows for which there is none are sorted behind those of all experts, where nobody takes them.
            chosen = chosen.where(has_room, self.num_experts)
            counts, without = count_by_expert(chosen, self.num_experts + 1).split([self.num_experts, 1])
            if torch.is_grad_enabled():
                self.num_dropped = without if self.num_dropped is None else self.num_dropped + without
        order = chosen.argsort(stable=True)  # rows of one expert stand together, each expert's in the tokens' order
        of_token = order // k
        # Experts take rows out of the tokens themselves: here they would live until the last product.
        rows = self.experts(tokens, of_token, routes.weights.flatten()[order], counts)
        of_token = of_token[: rows.size(0)]
        out: Tensor = _Sum.apply(rows, of_token, tokens.size(0)).view_as(x)
        if self.shared is not None:
            out = out + self.shared(x)
        return out if self.dropout is None else self.dropout(out)
