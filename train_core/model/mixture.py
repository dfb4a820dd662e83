"""A mixture of experts in the place of a layer's feed-forward network, in plain modules.

    tokens --[ router ]--> the `top_k` experts of each token, and their weights
       |
       +--[ experts ]--> each token through its experts, times their weights --sum--+
       +--[ shared ]---> every token, where a model has such an expert -------------+--> out

No token is dropped, and none is padded. As elsewhere in `model`, nothing here knows that it may run in parallel: by
their names `experts` becomes a module that holds some of them, `shared` is split like any feed-forward network, and
`balance` learns whose tokens make up a sequence. Shapes: s sequence, b micro-batch, h hidden, f width of an expert,
E experts, k those of a token, n = s b k rows.

Sources: arXiv 2401.04088 (Mixtral), section 2.1; arXiv 2412.19437 (DeepSeek-V3), section 2.1.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from conf.model_spec import ModelSpec
from train_core.model.elementwise import SILU, gated

SumOverSequence = Callable[[Tensor], Tensor]
"""Sums over all who have tokens of the same sequences."""


class Routes(NamedTuple):
    """The experts of some tokens: both (tokens, k), the weights in fp32."""

    weights: Tensor
    experts: Tensor


class _BalanceLoss(Function):
    """Hands the probabilities on; backward, adds the gradient of a loss that is least where experts get equal shares.

    The loss of a sequence is `coefficient * E * sum over experts of (share of its choices) (mean probability)`. It is
    taken by sequence, and so does not depend on the layout; shares are counted over the whole sequence.
    """

    @staticmethod
    def forward(ctx: Any, probabilities: Tensor, shares: Tensor, weight: float) -> Tensor:
        ctx.save_for_backward(shares)
        ctx.weight = weight
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
        shares = self.over_sequence(counts) / (num_tokens * self.num_parts * self.top_k)
        weight = self.coefficient * num_experts / (num_tokens * self.num_in_loss * batch) * self.gradient_scale
        out: Tensor = _BalanceLoss.apply(probabilities, shares, weight)  # type: ignore[no-untyped-call]
        return out


class Router(nn.Module):
    """Chooses experts by the softmax of a product in fp32: (s, b, h) -> routes of s b tokens.

    The weights of a token's experts are scaled to add up to one, as Mixtral, Qwen3-MoE and DeepSeek-V3 do.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        assert spec.experts is not None
        self.top_k = spec.experts.top_k
        self.weight = nn.Parameter(torch.empty(spec.experts.num_experts, spec.hidden_size))
        self.balance = Balance(spec)

    def forward(self, x: Tensor) -> Routes:
        probabilities = functional.linear(x.float(), self.weight.float()).softmax(-1)
        chosen = probabilities.detach().topk(self.top_k, dim=-1).indices
        weights = self.balance(probabilities, chosen).gather(-1, chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        return Routes(weights.flatten(0, 1), chosen.flatten(0, 1))


class ExpertWeights(nn.Module):
    """The matrices of one product of all experts, one below the other: (E out, in)."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)


class Experts(nn.Module):
    """All experts of a layer, each a gated feed-forward network: rows (n, h) in the order of experts -> (n, h)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        assert spec.experts is not None
        self.num_experts, self.width = spec.experts.num_experts, spec.experts.ffn_hidden_size
        self.up = ExpertWeights(torch.empty(self.num_experts * 2 * self.width, spec.hidden_size))
        self.down = ExpertWeights(torch.empty(self.num_experts * spec.hidden_size, self.width))

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """`counts` (E) says how many of the rows are for each expert."""
        sizes = counts.tolist()
        hidden = gated(_products(rows, self.up.weight, sizes), self.width, SILU)
        return _products(hidden, self.down.weight, sizes)


def _products(rows: Tensor, weight: Tensor, sizes: list[int]) -> Tensor:
    matrices = weight.view(len(sizes), -1, weight.size(1))
    return torch.cat([part @ matrix.t() for part, matrix in zip(rows.split(sizes), matrices, strict=True)])


class MixtureOfExperts(nn.Module):
    """Sends every token through the experts that its router chooses: (s, b, h) -> (s, b, h)."""

    def __init__(self, spec: ModelSpec, shared: nn.Module | None, dropout: nn.Module) -> None:
        """`shared` is the expert that every token passes through, None where there is none."""
        super().__init__()
        assert spec.experts is not None
        self.num_experts = spec.experts.num_experts
        self.router = Router(spec)
        self.experts: nn.Module = Experts(spec)
        self.shared = shared
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        tokens, routes = x.flatten(0, 1), self.router(x)
        chosen, k = routes.experts.flatten(), routes.experts.size(1)
        order = chosen.argsort(stable=True)  # rows of one expert stand together, each expert's in the tokens' order
        rows = self.experts(tokens[order // k], chosen.bincount(minlength=self.num_experts))
        weighted = rows * routes.weights.flatten()[order, None].to(rows.dtype)
        out = torch.zeros_like(tokens).index_add(0, order // k, weighted).view_as(x)
        if self.shared is not None:
            out = out + self.shared(x)
        dropped: Tensor = self.dropout(out)
        return dropped
