"""The optimizer step over all axes: sum gradients, clip their global norm, update fp32 masters, share the weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from conf.plan.experiment import Experiment
from costs.shared_rules import Treatment, rate_factor
from train_core.model.initialize import DTYPES
from train_core.optimizers.adam import AdamState
from train_core.optimizers.learning_rate import learning_rate_at
from train_core.optimizers.muon import Muon, MuonState
from train_core.parallel.collectives import all_reduce
from train_core.parallel.data_parallel import Replicas
from train_core.parallel.mesh import Mesh
from train_core.parallel.narrow import LossScale

NORM_ROW = 2**14
"""The number of squares summed in fp32 before fp64 takes over: few enough that fp32 loses nothing that matters."""


State: TypeAlias = AdamState | MuonState
"""What a rank keeps of a part of the weights, with the same methods in both."""


class StepResult(NamedTuple):
    """The result of one optimizer step, over the whole job.

    Attributes:
        loss: the mean over the global batch.
        gradient_norm: the norm of the whole model's gradient before clipping.
        overflowed: fp16 gradients left their range, and the weights were left as they were.
        summands: this rank's loss share and gradients, where a sum is not finite and nothing overflowed; else None.
    """

    loss: float
    gradient_norm: float
    learning_rate: float
    overflowed: bool = False
    summands: tuple[Tensor, list[Tensor]] | None = None

    @property
    def is_finite(self) -> bool:
        """True if the step has changed the weights: where gradients overflow, their norm is not finite either."""
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)


def flat_norm(flat: Tensor) -> Tensor:
    """The norm of a flat tensor in fp64, from the norms of rows in fp32: on a CPU torch would copy it to fp64 whole."""
    whole = flat.numel() // NORM_ROW * NORM_ROW
    rows = torch.linalg.vector_norm(flat[:whole].view(-1, NORM_ROW), dim=1, dtype=torch.float32)
    rest = torch.linalg.vector_norm(flat[whole:], dtype=torch.float32)
    return torch.linalg.vector_norm(torch.cat((rows, rest[None])), dtype=torch.float64)


class Optimizer:
    """AdamW, or Muon where the plan says so, over what this rank updates, in as many parts as `replicas` has.

    Attributes:
        loss_scale: the factor that every loss is multiplied by before backward.
        num_updates: how often the weights have been updated; an overflow is not an update.
        wait_for_copies: has the device wait for a checkpoint's copies of the states, before these change.
    """

    def __init__(self, replicas: Replicas, mesh: Mesh, experiment: Experiment, device: torch.device) -> None:
        self.plan, self.mesh, self.device, self.replicas = experiment.training, mesh, device, replicas
        self.loss_scale = LossScale.of(experiment.precision)
        self.num_updates = 0
        self.hidden_size = experiment.model.hidden_size
        self.states = [
            MuonState(weights) if treatment.role == "hidden" and self.plan.optimizer == "muon" else AdamState(weights)
            for weights, treatment in zip(replicas.own_weights(), replicas.treatments, strict=True)
        ]
        of_muon = {index: state for index, state in enumerate(self.states) if isinstance(state, MuonState)}
        self.muon = Muon(of_muon, replicas, DTYPES[experiment.precision.dtype], experiment.model.experts)
        self.wait_for_copies: Callable[[], None] = lambda: None

    def step(self, step: int, loss_share: Tensor) -> StepResult:
        """Update the weights with the gradients accumulated since `Replicas.zero_gradients`.

        Args:
            loss_share: this rank's summand of the mean loss over the global batch.
        """
        gradients = self.reduced_gradients()
        loss, gradient_norm = self._over_the_world(gradients, loss_share)
        overflowed = self.loss_scale.is_dynamic and not math.isfinite(gradient_norm)
        result = StepResult(loss, gradient_norm, learning_rate_at(step, self.plan), overflowed)
        if overflowed:
            self.loss_scale.back_off()
        elif result.is_finite:
            # One factor clips and takes the loss scale off, so that one pass over the gradients does both.
            factor = self._clip_factor(gradient_norm) / self.loss_scale.scale
            self._update(gradients, result.learning_rate, factor)
            self.loss_scale.note_success()
        else:  # the weights stay, so that the passes can be run again to find the origin
            result = result._replace(summands=(loss_share, gradients))
        return result

    def is_finite(self, loss_share: Tensor) -> bool:
        """True if loss and norm of the gradients since `Replicas.zero_gradients` are finite; updates nothing."""
        return all(map(math.isfinite, self._over_the_world(self.reduced_gradients(), loss_share)))

    def reduced_gradients(self) -> list[Tensor]:
        """The gradient of every part, summed over all ranks that have a summand of it."""
        gradients = self.replicas.reduced_gradients()
        # Sums over different axes commute. The replicas come first, so that only what a rank keeps goes on. All sums
        # are started before one is waited for, so that they travel at the same time.
        completing = []
        for treatment, gradient in zip(self.replicas.treatments, gradients, strict=True):
            completing += [all_reduce(gradient, self.mesh.axis(name)) for name in treatment.summed_over]
        for summing in completing:
            summing.wait()
        return gradients

    def _over_the_world(self, gradients: list[Tensor], loss_share: Tensor) -> tuple[float, float]:
        """Mean loss and gradient norm of the whole job, in one collective and one wait for the device."""
        counted = [
            self._counted_norm(treatment, gradient)
            for treatment, gradient in zip(self.replicas.treatments, gradients, strict=True)
            if self.mesh.counts(treatment)
        ]
        zero = torch.zeros((), dtype=torch.float64, device=self.device)
        square = torch.stack(counted).square().sum() if counted else zero
        # They stay on the device until they are summed, so that the host waits once.
        shares = torch.stack((loss_share.double(), square))
        loss, squares = all_reduce(shares, self.mesh.world).wait().tolist()
        holders = 1 if self.replicas.is_sharded else self.mesh.replicas.size  # so many replicas counted the same values
        return loss, math.sqrt(squares / holders) / self.loss_scale.scale

    def _counted_norm(self, treatment: Treatment, gradient: Tensor) -> Tensor:
        """The norm of a part, so large that its square counts once after the division by the number of replicas."""
        norm, holders = flat_norm(gradient), self.mesh.axis(*treatment.reduced_over).size
        usual = self.mesh.replicas.size
        return norm if self.replicas.is_sharded or holders == usual else norm * math.sqrt(usual / holders)

    def _clip_factor(self, gradient_norm: float) -> float:
        limit = self.plan.clip_gradient_norm
        # The same small summand as in torch.nn.utils.clip_grad_norm_.
        return 1.0 if limit is None or gradient_norm <= limit else limit / (gradient_norm + 1e-6)

    def _update(self, gradients: list[Tensor], learning_rate: float, factor: float) -> None:
        self.num_updates += 1
        self.wait_for_copies()
        # Filled on the device, because a copy of the number from the host would wait for all that is queued there.
        count = torch.full((), float(self.num_updates), device=self.device)
        for state, treatment, gradient in zip(self.states, self.replicas.treatments, gradients, strict=True):
            if factor != 1.0:
                gradient.mul_(factor)
            if isinstance(state, AdamState):
                weight_decay = self.plan.weight_decay if treatment.decays else 0.0
                rate = learning_rate * rate_factor(treatment.role, self.plan, self.hidden_size)
                # The kernel wants gradients in the masters' type.
                state.update(gradient.float(), count, rate, weight_decay, self.plan)
        self.muon.update(gradients, learning_rate, self.plan)
        for state, weights in zip(self.states, self.replicas.own_weights(), strict=True):
            state.write_to(weights)
        self.replicas.share_weights()
