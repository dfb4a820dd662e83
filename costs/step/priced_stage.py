"""A stage of many plans while it is priced: what it is, and what one of its ranks does and holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from costs.counts.parameters import final_norm_parameters
from costs.layer.layer_costs import LayerCosts
from costs.setting import Integers, Plans, Setting, by_distinct
from costs.stages import StageGroup, recomputed_layers
from costs.step.replicas import PricedReplicas, expert_replicas, num_shards, within_group
from costs.work import Work, recompute_by_layer


@dataclass(frozen=True)
class PricedStage:
    """One of a group of equal stages. Its properties are columns with an entry for each plan, (n,).

    Attributes:
        replicas: the plans, and what is the same for all of their stages.
        work: costs of a layer, of the embedding and of the head, by plan.
    """

    replicas: PricedReplicas
    work: Work
    group: StageGroup

    @property
    def setting(self) -> Setting:
        return self.replicas.setting

    @property
    def plans(self) -> Plans:
        return self.replicas.plans

    def of(self, group: StageGroup) -> PricedStage:
        """Another stage of the same plans."""
        return replace(self, group=group)

    @cached_property
    def dense_layers(self) -> Integers | int:
        """The stage's layers without experts, in a model whose others have some; they are all on the first stage.

        Where that has fewer layers, the rest is priced as if it had experts.
        """
        model = self.setting.model
        if model.experts is None or not model.num_dense_layers:
            return 0
        return np.where(self.group.is_first, np.minimum(self.group.layers, model.num_dense_layers), 0)

    def of_layers(self, name: str) -> Any:
        """The sum of a column of `LayerCosts` over the layers, of which some may recompute and the others not."""
        if not recompute_by_layer(self.plans):
            return self.of_equal_layers(name)
        work, some, dense = self.work, self._recomputed_layers, self._recomputed_dense_layers
        others, plain_dense = self.group.layers - some, self.dense_layers - dense
        recomputed = _sum(name, some, work.layer, dense, work.dense_layer)
        return recomputed + _sum(name, others, work.plain_layer, plain_dense, work.plain_dense_layer)

    @cached_property
    def _recomputed_layers(self) -> Integers:
        layers = self.group.layers
        return by_distinct(
            self.plans,
            "recompute_every",
            lambda fewer: recomputed_layers(layers, fewer.virtual_pipeline_size, fewer.recompute_every),
        )

    @cached_property
    def _recomputed_dense_layers(self) -> Integers:
        """The dense layers are the first, of which every n-th recomputes, and the others have to be among the rest."""
        others = self.group.layers - self._recomputed_layers
        return np.maximum(-(-self.dense_layers // self.plans.recompute_every), self.dense_layers - others)

    def kept_bytes_of(self, layers: Integers) -> Integers:
        """Bytes that so many layers of one chunk keep, of which every n-th recomputes and none is dense."""
        # The first of every n layers recomputes, so that their number is a quotient rounded up.
        repeating = by_distinct(self.plans, "recompute_every", lambda fewer: -(-layers // fewer.recompute_every))
        return repeating * self.work.layer.kept_bytes + (layers - repeating) * self.work.plain_layer.kept_bytes

    def of_equal_layers(self, name: str) -> Any:
        """The sum of a column over layers that are alike in it, as recomputation does not change it or all do alike."""
        return _sum(name, self.group.layers, self.work.layer, self.dense_layers, self.work.dense_layer)

    @property
    def staying_bytes(self) -> Integers | int:
        """Bytes that the layers of a chunk leave on the device of what they keep, where activations are offloaded.

        They are the input of the first one. Source: train_core/parallel/offload.py.
        """
        return self.work.held_hidden_bytes if self.setting.offload_activations else 0

    @cached_property
    def end_parameters(self) -> Integers:
        """Parameters that are in no layer: embedding, last norm and head."""
        group, work = self.group, self.work
        embedding = np.where(group.is_first, work.embedding_parameters, 0)
        # With one stage a tied head is the embedding itself; with several, the last needs a copy of its own.
        is_tied, has_others = self.setting.model.tied_embeddings, self.plans.pipeline_parallel_size > 1
        head = np.where(group.is_last & has_others if is_tied else group.is_last, work.token_embedding_parameters, 0)
        norm = np.where(group.is_last, final_norm_parameters(self.setting.model), 0)
        return embedding + head + norm

    @cached_property
    def parameters(self) -> Integers:
        """Parameters of one rank; the last stage holds its own copy of a tied token embedding."""
        work = self.work
        dense = self.dense_layers * (work.dense_layer_parameters - work.layer_parameters)
        return self.group.layers * work.layer_parameters + dense + self.end_parameters

    @cached_property
    def expert_parameters(self) -> Integers:
        """The parameters that are experts', of which fewer ranks hold copies than of all others."""
        if self.setting.model.experts is None:
            return np.zeros_like(self.group.layers)
        return (self.group.layers - self.dense_layers) * self.work.expert_parameters

    @cached_property
    def owned_parameters(self) -> Integers:
        """A rank's share under ZeRO. Shards are padded to one length, so that all ranks hold as much."""
        shards = num_shards(self.setting, self.plans)
        if self.setting.model.experts is None:
            return -(-self.parameters // shards)
        of_experts = within_group(self.setting, expert_replicas(self.setting, self.plans))
        return -(-(self.parameters - self.expert_parameters) // shards) - (-self.expert_parameters // of_experts)


def _sum(name: str, num_layers: Integers, each: LayerCosts, num_dense: Integers | int, dense: LayerCosts) -> Any:
    """The sum of a column over layers of which some are dense."""
    whole = num_layers * getattr(each, name)
    return whole if dense is each else whole + num_dense * (getattr(dense, name) - getattr(each, name))


def priced_stages(setting: Setting, plans: Plans, work: Work, groups: Sequence[StageGroup]) -> list[PricedStage]:
    """One for each group, in order."""
    replicas = PricedReplicas(setting, plans)
    return [PricedStage(replicas, work, group) for group in groups]
