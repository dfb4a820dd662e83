"""The distance between the ranks of a stage's replicas, and between neighbouring stages, in the order of devices.

Tensor ranks are neighbours, then context ranks; then come replicas and after them stages, or under
`pipeline_before_data` stages and after them replicas. Source: Megatron-LM, megatron/core/parallel_state.py, orders
"tp-cp-ep-dp-pp" and "tp-cp-ep-pp-dp" (--use-tp-pp-dp-mapping).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from train_core.costs.primitives.collectives import Runs
from train_core.costs.setting import Integers, Plans, Setting
from train_core.costs.step.sharing import within_group


class RankGroup(NamedTuple):
    """Ranks of a collective, in columns, as `primitives.collectives` takes them."""

    num_ranks: Integers
    stride: Integers
    runs: Runs | None


def stage_stride(setting: Setting, plans: Plans) -> Integers:
    """Devices from a rank to the one with the same share of the next stage."""
    replicas = plans.context_parallel_size if setting.pipeline_before_data else plans.num_replicas
    stride: Integers = plans.tensor_parallel_size * replicas
    return stride


def widest_hop(setting: Setting, plans: Plans) -> Integers:
    """A distance that crosses as many tiers as the widest hop between the stages of one pipeline.

    Where a node holds several stages, some hops leave it, and all stages wait for those in every turn. Half of the
    pipeline's extent is more than half of a block exactly where the pipeline does not fit into the block.
    """
    stride = stage_stride(setting, plans)
    crossed: Integers = np.maximum(stride, -(-stride * plans.pipeline_parallel_size // 2))
    return crossed


def pipeline_extent(setting: Setting, plans: Plans) -> Integers:
    """Devices from the first rank of a pipeline to the last of its last stage, both counted."""
    extent: Integers = stage_stride(setting, plans) * plans.pipeline_parallel_size
    return extent


def replica_group(setting: Setting, plans: Plans, size: Integers) -> RankGroup:
    """The first `size` of the ranks that hold the same weights of a stage.

    Context ranks are neighbours; under `pipeline_before_data` the others of a rank are whole pipelines away.
    """
    runs = Runs(plans.context_parallel_size, pipeline_extent(setting, plans)) if setting.pipeline_before_data else None
    return RankGroup(size, plans.tensor_parallel_size, runs)


def same_shard_group(setting: Setting, plans: Plans) -> RankGroup:
    """The ranks that hold the same shard of a stage, one of each group of `zero_group_size` replicas."""
    members, c = within_group(setting, plans.num_replicas), plans.context_parallel_size
    size, stride = -(-plans.num_replicas // members), plans.tensor_parallel_size * members
    if not setting.pipeline_before_data:
        return RankGroup(size, stride, None)
    jump = pipeline_extent(setting, plans) * np.maximum(1, members // c)
    return RankGroup(size, stride, Runs(np.maximum(1, c // members), jump))


def expert_stride(setting: Setting, plans: Plans) -> Integers:
    """Devices between neighbours of those ranks that hold the same experts.

    Under `pipeline_before_data` experts are spread over all ranks of one replica (conf.expert_axis).
    """
    among = plans.expert_parallel_size * setting.expert_tensor_size(plans.tensor_parallel_size)
    apart: Integers = among * plans.pipeline_parallel_size if setting.pipeline_before_data else among
    return apart
