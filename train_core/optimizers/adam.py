"""AdamW on fp32 masters, in torch's fused kernel on GPUs and on CPUs."""

from __future__ import annotations

import torch
from torch import Tensor

from conf.types.schema import TrainingPlan


class AdamState:
    """Holds the fp32 masters and the two moments of AdamW for one flat part of the weights (n)."""

    def __init__(self, weights: Tensor) -> None:
        """Copy the weights as fp32 masters, or take them as such where they are fp32 already."""
        self.masters = weights.float()
        self.first_moments = torch.zeros_like(self.masters)
        self.second_moments = torch.zeros_like(self.masters)

    def update(
        self, gradients: Tensor, num_updates: Tensor, learning_rate: float, weight_decay: float, plan: TrainingPlan
    ) -> None:
        """One AdamW step with fp32 gradients; `num_updates` counts this one too. Source: arXiv 1711.05101, algorithm 2.

        The kernel behind torch.optim.AdamW(fused=True), called directly: constructing a torch optimizer imports the
        compiler, which costs every rank a second at its start.
        """
        torch._fused_adamw_(
            [self.masters],
            [gradients],
            [self.first_moments],
            [self.second_moments],
            [],
            [num_updates],
            lr=learning_rate,
            beta1=plan.adam_beta1,
            beta2=plan.adam_beta2,
            weight_decay=weight_decay,
            eps=plan.adam_epsilon,
            amsgrad=False,
            maximize=False,
        )

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint keeps of it, by name."""
        return {"weights": self.masters, "first_moments": self.first_moments, "second_moments": self.second_moments}

    def write_to(self, weights: Tensor) -> None:
        if weights.dtype != self.masters.dtype:
            weights.copy_(self.masters)
