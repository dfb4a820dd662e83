"""The biases by which routers choose experts: no gradient reaches them, and each moves against its expert's load.

    after an update     bias of an expert  +=  step * sign(mean load of its layer - load of the expert)

Loads are the rows that experts got in all passes of the step on all ranks of the stage, so that biases do not depend on
the layout. They are no weights: they have no moments, and do not decay.

Source: arXiv 2408.15664, algorithm 1; arXiv 2412.19437, section 2.1.2.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from conf.types.model_spec import ModelSpec
from train_core.axes import EXPERT, EXPERT_REPLICAS
from train_core.model.mixture import MixtureOfExperts
from train_core.parallel.collectives import Axis, all_reduce
from train_core.parallel.mesh import Mesh
from train_core.parallel.parallelize import FirstValue, Stage


class RouterBiases:
    """The biases of this rank's stage, which all of its ranks hold alike.

    Attributes:
        mixtures: the layers with experts, by their names in the whole model.
        values: the biases in fp32, a row for each of these; None where the model has none.
        stage_rows: the loads by which they were moved in this step (layers, E); None where they were not.
    """

    def __init__(self, model: ModelSpec, stage: Stage, mesh: Mesh, device: torch.device) -> None:
        self.mesh, self.step = mesh, 0.0 if model.experts is None else model.experts.balance_bias
        self.mixtures = {
            name: module
            for chunk in stage.chunks
            for name, module in chunk.named_modules()
            if isinstance(module, MixtureOfExperts)
        }
        self.values: Tensor | None = None
        self.stage_rows: Tensor | None = None
        if model.experts is not None and self.step and self.mixtures:
            self.values = torch.zeros(len(self.mixtures), model.experts.num_experts, device=device)
            for mixture, row in zip(self.mixtures.values(), self.values, strict=True):
                mixture.router.bias = row

    def start_from(self, first_value: FirstValue) -> None:
        """Take the biases of weights that a training starts from."""
        for name, bias in self.tensors().items():
            bias.copy_(first_value(name, bias.shape, Axis()))

    def begin(self) -> None:
        """Forget the loads of passes before this step's."""
        self.stage_rows = None
        for mixture in self.mixtures.values():
            mixture.forget_rows()

    def update(self) -> None:
        """Move the biases, after a step that has updated the weights; all ranks of a stage call it together."""
        if self.values is None:
            return
        self.stage_rows = rows = sum_over_stage(rows_of_experts(self.mixtures.values()), self.mesh)
        # Loads are compared as whole numbers, so that the sign of a small error does not hang on rounding.
        errors = rows.sum(1, keepdim=True) - rows * rows.size(1)
        self.values.add_(errors.sign().float(), alpha=self.step)

    def tensors(self) -> dict[str, Tensor]:
        """The bias of each router, as a view, by its name in the whole model."""
        if self.values is None:
            return {}
        return {f"{name}.router.bias": row for name, row in zip(self.mixtures, self.values, strict=True)}


def rows_of_experts(mixtures: Iterable[MixtureOfExperts]) -> Tensor:
    """By layer the rows that each expert got in passes of this rank (layers, E)."""
    counted = [mixture.rows_of_experts for mixture in mixtures]
    return torch.stack([rows for rows in counted if rows is not None])


def sum_over_stage(counts: Tensor, mesh: Mesh) -> Tensor:
    """The sum over all ranks of the stage, which call it together."""
    for axis in (EXPERT, EXPERT_REPLICAS):
        counts = all_reduce(counts, mesh.axis(axis)).wait()
    return counts
