"""The load of experts, and the biases by which routers choose them, each of which moves against its expert's load.

    after an update     bias of an expert  +=  step * sign(mean load of its layer - load of the expert)

Loads are the rows that experts got in all passes of the step on all ranks of the stage, so that biases do not depend on
the layout. They are no weights: no gradient reaches them, they have no moments, and do not decay. People are told loads
over the mean of a layer (1 where tokens are shared out evenly), and the share of rows that found no room.

Source: arXiv 2408.15664, algorithm 1; arXiv 2412.19437, section 2.1.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from conf.types.model_spec import ModelSpec
from costs.axes import EXPERT, EXPERT_REPLICAS
from train_core.model.mixture import MixtureOfExperts
from train_core.parallel.collectives import Axis, all_reduce
from train_core.parallel.groups import gather, gather_objects
from train_core.parallel.mesh import Mesh
from train_core.parallel.parallelize import FirstValue, Stage

Loads = dict[int, list[float]]
"""Of every expert, by the layer's index."""


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

    @property
    def are_told_here(self) -> bool:
        """True on the one rank of a stage that writes or tells what all of its ranks hold alike."""
        return self.mesh.world.rank == self.mesh.layout.rank(self.mesh.pipeline.rank)

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


class StepLoad(NamedTuple):
    """How experts of all layers were loaded in a step; see the fields of these names of `StepMetrics`."""

    busiest_expert_load: float | None = None
    dropped_share: float | None = None


class ExpertLoads:
    """The loads of this rank's stage, step by step. All ranks of the world call it together."""

    def __init__(self, model: ModelSpec, biases: RouterBiases, device: torch.device) -> None:
        """`biases` are those of the stage's routers, which know a step's sums where they moved by them."""
        self.mesh, self.device, self.biases = biases.mesh, device, biases
        # Their names are such as `layers.3.feed_forward`.
        self.mixtures = {int(name.split(".")[1]): mixture for name, mixture in biases.mixtures.items()}
        self.timed: dict[int, torch.Tensor] = {}
        self.num_experts = 0 if model.experts is None else model.experts.num_experts
        self.has_capacity = model.experts is not None and model.experts.capacity_factor is not None
        self.dropped, self.layers = 0.0, 0.0  # the sum of layers' shares, and how many they are

    def add_step(self, *, is_timed: bool) -> StepLoad:
        """Take what the step's passes have counted, of which there is nothing where no rank has experts."""
        if EXPERT not in {name for names in self.mesh.axes for name in names}:
            return StepLoad()
        counted = self._take_row_counts()
        rows = {index: of_layer[: self.num_experts] for index, of_layer in counted.items()}
        if is_timed:
            self.timed = {index: of_step + self.timed.get(index, 0) for index, of_step in rows.items()}
        busiest = max(map(max, _loads(rows).values()), default=0.0)
        # Shares, because a layer whose forward pass is repeated has counted its rows twice; all route equally many.
        dropped = sum(float(counted[index][self.num_experts :].sum() / rows[index].sum()) for index in rows)
        # A stage without experts takes part all the same, since this is a collective over the world.
        of_ranks = gather([busiest, dropped, float(len(rows))], self.mesh.world, self.device)
        # Stages have equally many ranks, of which each knows the sums of its stage.
        loads, *sums = zip(*of_ranks, strict=True)
        dropped, layers = map(sum, sums)
        if is_timed:
            self.dropped, self.layers = self.dropped + dropped, self.layers + layers
        return StepLoad(max(loads), dropped / layers if self.has_capacity else None)

    def _take_row_counts(self) -> dict[int, torch.Tensor]:
        """On the host, by layer: the rows of each expert (E), then those without room where there is a limit, of the
        whole stage.
        """
        if not self.mixtures:
            return {}
        summed = self.biases.stage_rows
        own = [rows_of_experts(self.mixtures.values())] if summed is None else []
        if self.has_capacity:
            own.append(
                torch.stack([each.num_dropped for each in self.mixtures.values() if each.num_dropped is not None])
            )
        parts = ([] if summed is None else [summed]) + ([sum_over_stage(torch.cat(own, 1), self.mesh)] if own else [])
        for mixture in self.mixtures.values():
            mixture.forget_rows()
        # All layers at once: the host would wait for the device at every count that it reads by itself.
        return dict(zip(self.mixtures, torch.cat(parts, 1).cpu(), strict=True))

    def fields(self) -> dict[str, Any]:
        """The loads in the timed steps, as a field of a `Performance`; empty where no rank has experts."""
        of_stages = gather_objects(_loads(self.timed) if self.biases.are_told_here else {}, self.mesh.world)
        by_layer = {index: loads for of_stage in of_stages for index, loads in of_stage.items()}
        loads = tuple(tuple(by_layer[index]) for index in sorted(by_layer))
        is_known = self.has_capacity and self.layers > 0  # a process that goes on near the end may time no step
        return {"expert_loads": loads, "dropped_share": self.dropped / self.layers if is_known else None}


def _loads(rows: dict[int, torch.Tensor]) -> Loads:
    # Over the mean of the layer, so that 1 is an even share whatever the numbers of tokens and experts are.
    counts = {index: of_layer.double().tolist() for index, of_layer in rows.items()}
    return {index: [number * len(each) / sum(each) for number in each] for index, each in counts.items()}
