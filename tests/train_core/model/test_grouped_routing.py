"""A router among groups of experts chooses and weighs as the formulas say, written out token by token."""

from __future__ import annotations

import math

import pytest
import torch

from conf.errors import ConfigError
from conf.types.model_spec import ExpertsSpec
from tests.messages import refused
from tests.train_core.conftest import ExperimentOf
from tests.train_core.training.layouts import mixture_with
from train_core.model.mixture import Router

EXPERTS, GROUPS, BEST, TOP_K, SCALE = 8, 4, 2, 3, 2.5


def route_of(token: list[float], rows: list[list[float]], bias: list[float]) -> dict[int, float]:
    """The weight of each expert that a token chooses. Source: arXiv 2412.19437, equations 13 to 16."""
    scores = [1 / (1 + math.exp(-sum(a * b for a, b in zip(token, row, strict=True)))) for row in rows]
    biased, size = [score + more for score, more in zip(scores, bias, strict=True)], EXPERTS // GROUPS
    members = [range(group * size, (group + 1) * size) for group in range(GROUPS)]
    best = sorted(members, key=lambda group: -sum(sorted((biased[e] for e in group), reverse=True)[:2]))[:BEST]
    chosen = sorted((expert for group in best for expert in group), key=lambda expert: -biased[expert])[:TOP_K]
    return {expert: SCALE * scores[expert] / sum(scores[e] for e in chosen) for expert in chosen}


def test_experts_come_from_the_best_groups_and_weigh_the_scale_together(experiment_of: ExperimentOf) -> None:
    torch.manual_seed(0)
    grouped = {"num_groups": GROUPS, "top_groups": BEST, "top_k": TOP_K, "routed_scale": SCALE, "scores": "sigmoid"}
    router = Router(experiment_of(mixture_with(**grouped, balance_loss=0.0)).model)
    torch.nn.init.normal_(router.weight, std=0.3)
    # Some are below zero with their biases, and are still better than those of groups that are not chosen.
    router.bias = torch.randn(EXPERTS)
    x = torch.randn(5, 3, router.weight.size(1))
    routes = router(x)
    for token, experts, weights in zip(x.flatten(0, 1), routes.experts.tolist(), routes.weights.tolist(), strict=True):
        expected = route_of(token.tolist(), router.weight.tolist(), router.bias.tolist())
        assert dict(zip(experts, weights, strict=True)) == pytest.approx(expected, rel=1e-4)


def test_a_token_that_no_expert_scores_weighs_nothing(experiment_of: ExperimentOf) -> None:
    """All sigmoids are 0 in fp32 where products are below -104."""
    router = Router(experiment_of(mixture_with(scores="sigmoid", balance_loss=0.1)).model)
    torch.nn.init.ones_(router.weight)
    x = torch.full((1, 1, router.weight.size(1)), -150.0, requires_grad=True)
    weights = router(x).weights
    weights.sum().backward()
    assert (weights == 0).all()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_balanced_experts_leave_the_gradient_of_scores_as_it_is(experiment_of: ExperimentOf) -> None:
    """What all shares have in common cancels in exact numbers alone, and is larger than many a gradient of scores."""
    torch.manual_seed(0)
    balance = Router(experiment_of(mixture_with(num_experts=2, top_k=2, balance_loss=0.1)).model).balance
    gradient, chosen = torch.randn(6, 3, 2) * 1e-6, torch.tensor([0, 1]).expand(6, 3, 2)
    probabilities = torch.rand(6, 3, 2, requires_grad=True)
    balance(probabilities, chosen).backward(gradient)
    assert probabilities.grad is not None
    assert torch.equal(probabilities.grad, gradient)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"num_groups": 3}, "model.experts.num_groups"),
        ({"num_groups": 4, "top_groups": 5}, "model.experts.top_groups"),
        ({"num_groups": 4}, "model.experts.top_groups"),
    ],
)
def test_groups_that_hold_too_few_experts_are_refused(values: dict[str, int], key: str) -> None:
    with refused(ConfigError, key):
        ExpertsSpec.model_validate({"num_experts": EXPERTS, "top_k": TOP_K, "ffn_hidden_size": 4, **values})
