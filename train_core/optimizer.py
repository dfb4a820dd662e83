"""The optimizer step over all axes: sum gradients, clip their global norm, AdamW on fp32 masters, share the weights."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from conf.experiment import Experiment
from conf.schema import TrainingPlan
from train_core.collectives import all_reduce, total
from train_core.data_parallel import Replicas
from train_core.flat_parameters import flatten
from train_core.main_gradient import main_gradient
from train_core.mesh import Mesh
from train_core.parallelize import TIED_EMBEDDING, TIED_HEAD, Stage


class StepResult(NamedTuple):
    """What one optimizer step saw, over the whole job: mean loss, and the gradient's norm before clipping."""

    loss: float
    gradient_norm: float
    learning_rate: float


def learning_rate_at(step: int, plan: TrainingPlan) -> float:
    """Linear warm-up over the first steps, then a cosine down to the minimum at the last; `step` counts from 1."""
    warmup = plan.learning_rate_warmup_steps
    if step <= warmup:
        return plan.learning_rate * step / warmup
    progress = (step - warmup) / max(1, plan.num_steps - warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return plan.min_learning_rate + (plan.learning_rate - plan.min_learning_rate) * cosine


class Optimizer:
    """AdamW over this rank's buckets."""

    def __init__(self, stage: Stage, mesh: Mesh, experiment: Experiment, device: torch.device) -> None:
        self.plan, self.mesh, self.device = experiment.training, mesh, device
        self.buckets = flatten(stage, mesh)
        self.replicas = Replicas(mesh.data, experiment.parallel.zero_stage, device)
        self.tied_gradient = _tied_gradient(stage, mesh) if experiment.model.tied_embeddings else None
        self.states = [AdamState(self.replicas.own(bucket.weights)) for bucket in self.buckets]

    def zero_gradients(self) -> None:
        for bucket in self.buckets:
            bucket.gradients.zero_()

    def step(self, step: int, loss_share: Tensor) -> StepResult:
        """Update the weights with the gradients accumulated since `zero_gradients`.

        Args:
            loss_share: this rank's summand of the mean loss over the global batch.
        """
        self.reduce_gradients()
        loss, gradient_norm = self._over_the_world(loss_share)
        learning_rate = learning_rate_at(step, self.plan)
        self._update(step, learning_rate, self._clip_factor(gradient_norm))
        return StepResult(loss, gradient_norm, learning_rate)

    def reduce_gradients(self) -> None:
        """Complete the gradients over the tensor axis, the tied embedding's two stages, and the replicas."""
        for reducing in [
            all_reduce(bucket.gradients, self.mesh.tensor) for bucket in self.buckets if bucket.treatment.partial
        ]:
            reducing.wait()
        if self.tied_gradient is not None:
            all_reduce(self.tied_gradient, self.mesh.embedding).wait()
        self.replicas.reduce_gradients(self.buckets)

    def _over_the_world(self, loss_share: Tensor) -> tuple[float, float]:
        """Mean loss and gradient norm of the whole job, in one collective and one wait for the device."""
        counted = [
            torch.linalg.vector_norm(self.replicas.own(bucket.gradients), dtype=torch.float64)
            for bucket in self.buckets
            if bucket.treatment.counted
        ]
        zero = torch.zeros((), dtype=torch.float64, device=self.device)
        square = torch.stack(counted).square().sum() if counted else zero
        shares = torch.stack((loss_share.double(), square)).tolist()
        loss, squares = total(shares, self.mesh.world, self.device)
        holders = 1 if self.replicas.is_sharded else self.mesh.data.size  # replicas that counted the same values
        return loss, math.sqrt(squares / holders)

    def _clip_factor(self, gradient_norm: float) -> float:
        limit = self.plan.clip_gradient_norm
        return 1.0 if limit is None or gradient_norm <= limit else limit / (gradient_norm + 1e-6)

    def _update(self, step: int, learning_rate: float, factor: float) -> None:
        for state, bucket in zip(self.states, self.buckets, strict=True):
            gradients = self.replicas.own(bucket.gradients)
            if factor != 1.0:
                gradients.mul_(factor)
            weight_decay = self.plan.weight_decay if bucket.treatment.decays else 0.0
            state.update(gradients, step, learning_rate, weight_decay, self.plan)
            state.write_to(self.replicas.own(bucket.weights))
        self.replicas.gather_weights(self.buckets)


class AdamState:
    """fp32 masters and the two moments of AdamW for one run of weights (n)."""

    def __init__(self, weights: Tensor) -> None:
        """Where the weights are fp32 they are the masters, and no copy is kept."""
        self.masters = weights.float()
        self.first_moments = torch.zeros_like(self.masters)
        self.second_moments = torch.zeros_like(self.masters)

    def update(
        self, gradients: Tensor, step: int, learning_rate: float, weight_decay: float, plan: TrainingPlan
    ) -> None:
        """One AdamW step; `step` counts from 1. Source: arXiv 1711.05101, algorithm 2.

        The kernel behind torch.optim.AdamW(fused=True), called directly: constructing a torch optimizer imports the
        compiler, which costs every rank a second at its start.
        """
        torch._fused_adamw_(
            [self.masters],
            [gradients],
            [self.first_moments],
            [self.second_moments],
            [],
            [torch.tensor(float(step), device=gradients.device)],
            lr=learning_rate,
            beta1=plan.adam_beta1,
            beta2=plan.adam_beta2,
            weight_decay=weight_decay,
            eps=plan.adam_epsilon,
            amsgrad=False,
            maximize=False,
        )

    def write_to(self, weights: Tensor) -> None:
        if weights.dtype != self.masters.dtype:
            weights.copy_(self.masters)


def _tied_gradient(stage: Stage, mesh: Mesh) -> Tensor | None:
    """The gradient of the token embedding where the first and the last stage each have a part of it."""
    if mesh.embedding.size == 1:
        return None
    held = dict(stage.named_parameters())
    return main_gradient(held[TIED_HEAD if TIED_HEAD in held else TIED_EMBEDDING])
