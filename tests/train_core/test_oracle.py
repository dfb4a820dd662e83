"""An independent GPT, written out in plain tensors with torch's own optimizer, trains like the trainer on one rank."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from conf.experiment import Experiment
from train_core.main_gradient import main_gradient
from train_core.optimizer import learning_rate_at
from train_core.train import Trainer


def plain_attention(x: Tensor, weights: dict[str, Tensor], prefix: str, heads: int) -> Tensor:
    """(b, s, h) -> (b, s, h) with an explicit mask and softmax."""
    b, s, h = x.shape
    qkv = x @ weights[f"{prefix}.qkv.weight"].T + weights[f"{prefix}.qkv.bias"]
    q, k, v = (qkv.reshape(b, s, heads, 3, h // heads)[:, :, :, part].transpose(1, 2) for part in range(3))
    scores = q @ k.transpose(-1, -2) / math.sqrt(h // heads)
    scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), -torch.inf)
    mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, h)
    return mixed @ weights[f"{prefix}.projection.weight"].T + weights[f"{prefix}.projection.bias"]


def plain_norm(x: Tensor, weights: dict[str, Tensor], prefix: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled * weights[f"{prefix}.weight"] + weights[f"{prefix}.bias"]


def plain_loss(tokens: Tensor, targets: Tensor, weights: dict[str, Tensor], experiment: Experiment) -> Tensor:
    """Token ids (b, s) to the mean cross-entropy."""
    model = experiment.model
    x = weights["embedding.tokens.weight"][tokens] + weights["embedding.positions.weight"]
    for index in range(model.num_layers):
        layer = f"layers.{index}"
        normed = plain_norm(x, weights, f"{layer}.attention_norm")
        x = x + plain_attention(normed, weights, f"{layer}.attention", model.num_attention_heads)
        y = plain_norm(x, weights, f"{layer}.feed_forward_norm")
        y = y @ weights[f"{layer}.feed_forward.up.weight"].T + weights[f"{layer}.feed_forward.up.bias"]
        y = functional.gelu(y, approximate="tanh")
        x = x + y @ weights[f"{layer}.feed_forward.down.weight"].T + weights[f"{layer}.feed_forward.down.bias"]
    logits = plain_norm(x, weights, "final_norm") @ weights["embedding.tokens.weight"].T
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train_both(world: Any, experiment: Experiment, cache_dir: Path) -> list[tuple[float, float, float, float, float]]:
    """For every step: both losses, both norms, and the largest relative error of a gradient."""
    trainer, plan = Trainer(experiment, world, cache_dir), experiment.training
    weights = {name: p.detach().clone().requires_grad_() for name, p in trainer.stage.named_parameters()}
    groups = [
        {"params": [w for w in weights.values() if w.dim() > 1], "weight_decay": plan.weight_decay},
        {"params": [w for w in weights.values() if w.dim() == 1], "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(groups, betas=(plan.adam_beta1, plan.adam_beta2), eps=plan.adam_epsilon)
    told = []
    for step in range(1, plan.num_steps + 1):
        batch = [trainer.batches.micro_batch(step, index) for index in range(experiment.num_micro_batches)]
        tokens, targets = (torch.cat([part[side] for part in batch], dim=1).T for side in (0, 1))
        adam.zero_grad()
        loss = plain_loss(tokens, targets, weights, experiment)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(list(weights.values()), plan.clip_gradient_norm)
        for group in adam.param_groups:
            group["lr"] = learning_rate_at(step, plan)
        adam.step()
        result = trainer.step(step)
        worst = max(
            float((main_gradient(parameter) - weights[name].grad).norm() / max(weights[name].grad.norm(), 1e-3))
            for name, parameter in trainer.stage.named_parameters()
        )
        told.append((float(loss.detach()), result.loss, float(norm), result.gradient_norm, worst))
    return told


def test_the_trainer_agrees_with_a_plain_gpt(worlds: Any, experiment_of: Any, tmp_path: Path) -> None:
    values = {"training.clip_gradient_norm": 0.5, "training.learning_rate": 1e-2, "training.adam_epsilon": 1e-3}
    (told,) = worlds(1).run(train_both, experiment_of(values), tmp_path)
    plain_losses, losses, plain_norms, norms, errors = zip(*told, strict=True)
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-5)
    np.testing.assert_allclose(norms, plain_norms, rtol=1e-5)
    assert max(errors) < 1e-4
    assert norms[0] > 0.5, "clipping did not act"
