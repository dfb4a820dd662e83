"""The load of experts: the rows for each over the mean of its layer (1 where tokens are shared out evenly), and the
share of rows for which they have no room.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from conf.types.model_spec import ModelSpec
from train_core.axes import EXPERT
from train_core.optimizer.router_bias import RouterBiases, rows_of_experts, sum_over_stage
from train_core.parallel.collectives import gather, gather_objects

Loads = dict[int, list[float]]
"""Of every expert, by the layer's index."""


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
        self.dropped, self.routed = 0.0, 0.0

    def add_step(self, *, is_timed: bool) -> StepLoad:
        """Take what the step's passes have counted, of which there is nothing where no rank has experts."""
        if EXPERT not in {name for names in self.mesh.axes for name in names}:
            return StepLoad()
        counted = self._take_row_counts()
        rows = {index: of_layer[: self.num_experts] for index, of_layer in counted.items()}
        if is_timed:
            self.timed = {index: of_step + self.timed.get(index, 0) for index, of_step in rows.items()}
        busiest = max(map(max, _loads(rows).values()), default=0.0)
        dropped = sum(float(of_layer[self.num_experts :].sum()) for of_layer in counted.values())
        routed = sum(float(of_layer.sum()) for of_layer in rows.values())
        # A stage without experts takes part all the same, since this is a collective over the world.
        of_ranks = gather([busiest, dropped, routed], self.mesh.world, self.device)
        # Stages have equally many ranks, of which each knows the sums of its stage.
        loads, *sums = zip(*of_ranks, strict=True)
        dropped, routed = map(sum, sums)
        if is_timed:
            self.dropped, self.routed = self.dropped + dropped, self.routed + routed
        return StepLoad(max(loads), dropped / routed if self.has_capacity else None)

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
        of_stages = gather_objects(_loads(self.timed) if self.mesh.is_first_of_stage else {}, self.mesh.world)
        by_layer = {index: loads for of_stage in of_stages for index, loads in of_stage.items()}
        loads = tuple(tuple(by_layer[index]) for index in sorted(by_layer))
        is_known = self.has_capacity and self.routed > 0  # a process that goes on near the end may time no step
        return {"expert_loads": loads, "dropped_share": self.dropped / self.routed if is_known else None}


def _loads(rows: dict[int, torch.Tensor]) -> Loads:
    # Over the mean of the layer, so that 1 is an even share whatever the numbers of tokens and experts are.
    counts = {index: of_layer.double().tolist() for index, of_layer in rows.items()}
    return {index: [number * len(each) / sum(each) for number in each] for index, each in counts.items()}
