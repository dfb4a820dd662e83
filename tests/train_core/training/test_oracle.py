"""An independent GPT and Llama, in plain tensors with torch's own optimizer, train like the trainer on one rank."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from conf.experiment import Experiment
from conf.schema import Value
from conf.world import ModelSpec
from tests.train_core.conftest import ExperimentOf, Worlds
from train_core.optimizer.optimizer import learning_rate_at
from train_core.parallel.main_gradient import main_gradient
from train_core.process.world import World
from train_core.training.trainer import Trainer


def plain_linear(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", torch.zeros(()))


def turned(x: Tensor) -> Tensor:
    """Rotary positions of (b, heads, s, d): element i and i + d/2 are one complex number, turned by the position."""
    left, right = x.float().chunk(2, -1)
    angles = torch.outer(torch.arange(x.size(-2)), 10000.0 ** -torch.linspace(0, 1, left.size(-1) + 1)[:-1])
    number = torch.complex(left, right) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((number.real, number.imag), -1)


def plain_attention(x: Tensor, weights: dict[str, Tensor], prefix: str, model: ModelSpec) -> Tensor:
    """(b, s, h) -> (b, s, h) with an explicit mask and softmax, every head's keys and values written out."""
    b, s, _ = x.shape
    shared = model.num_attention_heads // model.num_query_groups
    groups = plain_linear(x, weights, f"{prefix}.qkv").reshape(b, s, model.num_query_groups, shared + 2, -1)
    groups = groups.permute(0, 2, 3, 1, 4)  # (b, groups, members, s, d)
    q = groups[:, :, :shared].flatten(1, 2)
    k, v = (groups[:, :, shared + part].repeat_interleave(shared, dim=1) for part in range(2))
    if model.family == "llama":
        q, k = turned(q), turned(k)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
    scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), -torch.inf)
    mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, -1)
    return plain_linear(mixed, weights, f"{prefix}.projection")


def plain_feed_forward(x: Tensor, weights: dict[str, Tensor], prefix: str, model: ModelSpec) -> Tensor:
    x = plain_linear(x, weights, f"{prefix}.up")
    if model.gated_mlp:  # rows take turns in as many blocks as there are query groups
        gate, x = x.unflatten(-1, (model.num_query_groups, 2, -1)).unbind(-2)
        gate, x = gate.flatten(-2), x.flatten(-2)
        x = gate * torch.sigmoid(gate) * x
    else:
        x = functional.gelu(x, approximate="tanh")
    return plain_linear(x, weights, f"{prefix}.down")


def plain_norm(x: Tensor, weights: dict[str, Tensor], prefix: str) -> Tensor:
    """LayerNorm where there is a bias, else RMSNorm."""
    bias = weights.get(f"{prefix}.bias")
    centred = x if bias is None else x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights[f"{prefix}.weight"]
    return scaled if bias is None else scaled + bias


def plain_loss(tokens: Tensor, targets: Tensor, weights: dict[str, Tensor], experiment: Experiment) -> Tensor:
    """Token ids (b, s) to the mean cross-entropy."""
    model = experiment.model
    embedding = weights["embedding.tokens.weight"]
    x = embedding[tokens] + weights.get("embedding.positions.weight", torch.zeros(()))
    for index in range(model.num_layers):
        layer = f"layers.{index}"
        x = x + plain_attention(plain_norm(x, weights, f"{layer}.attention_norm"), weights, f"{layer}.attention", model)
        y = plain_norm(x, weights, f"{layer}.feed_forward_norm")
        x = x + plain_feed_forward(y, weights, f"{layer}.feed_forward", model)
    logits = plain_norm(x, weights, "final_norm") @ weights.get("head.weight", embedding).T
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def relative_error(measured: Tensor | None, expected: Tensor | None) -> float:
    assert measured is not None
    assert expected is not None
    return float((measured - expected).norm() / max(expected.norm(), 1e-3))


def train_both(world: World, experiment: Experiment, cache_dir: Path) -> list[tuple[float, float, float, float, float]]:
    """For every step: both losses, both norms, and the largest relative error of a gradient."""
    trainer, plan = Trainer(experiment, world, cache_dir), experiment.training
    weights = {name: p.detach().clone().requires_grad_() for name, p in trainer.stage.named_parameters()}
    groups = [
        {"params": [w for w in weights.values() if w.dim() > 1], "weight_decay": plan.weight_decay},
        {"params": [w for w in weights.values() if w.dim() == 1], "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(groups, betas=(plan.adam_beta1, plan.adam_beta2), eps=plan.adam_epsilon)
    clip, told = plan.clip_gradient_norm, []
    assert clip is not None
    for step in range(1, plan.num_steps + 1):
        batch = [trainer.batches.micro_batch(step, index) for index in range(experiment.num_micro_batches)]
        tokens, targets = (torch.cat([part[side] for part in batch], dim=1).T for side in (0, 1))
        adam.zero_grad()
        loss = plain_loss(tokens, targets, weights, experiment)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(list(weights.values()), clip)
        for group in adam.param_groups:
            group["lr"] = learning_rate_at(step, plan)
        adam.step()
        result = trainer.step(step)
        worst = max(
            relative_error(main_gradient(parameter), weights[name].grad)
            for name, parameter in trainer.stage.named_parameters()
        )
        told.append((float(loss.detach()), result.loss, float(norm), result.gradient_norm, worst))
    return told


LLAMA = {
    "model.family": "llama",
    "model.gated_mlp": True,
    "model.tied_embeddings": False,
    "model.num_query_groups": 2,
    "model.head_size": 6,
}


@pytest.mark.parametrize("model", [{}, LLAMA], ids=["gpt", "llama"])
def test_the_trainer_agrees_with_a_plain_model(
    model: dict[str, Value], worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    values: dict[str, Value] = {
        "training.clip_gradient_norm": 0.5,
        "training.learning_rate": 3e-3,
        "training.adam_epsilon": 1e-3,
    }
    (told,) = worlds(1).run(train_both, experiment_of(values | model), tmp_path)
    plain_losses, losses, plain_norms, norms, errors = zip(*told, strict=True)
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-5)
    np.testing.assert_allclose(norms, plain_norms, rtol=1e-5)
    assert max(errors) < 1e-4
    assert norms[0] > 0.5, "clipping did not act"
