"""Settings and plans for the tests of single formulas: sizes are named where they matter and are 1 elsewhere."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from conf.plan.knobs import SCHEDULES
from conf.types.recompute import RECOMPUTES
from costs import IMPLEMENTATIONS
from costs.layer.shard import Shard
from costs.price import Prices, price
from costs.setting import Plans, Scale, Setting
from costs.stages import each_stage, spread_stages
from costs.step.priced_stage import PricedStage
from costs.step.replicas import PricedReplicas
from costs.step.stage_memory import group_memory
from costs.terms import GroupMemory
from costs.work import work_of
from tests.composed import load

UNSCALED = Scale(shown=0.0, latency=1.0, slowest=0.0, taper=0.0, start=0.0)
"""Devices that are equally fast, links that do not slow down, and communication that is free where it is hidden."""


@cache
def setting_of(model: str, cluster: str, dtype: str = "bf16", trainer: str = "megatron-lm") -> Setting:
    """A trainer with this model on this cluster."""
    loaded = load([f"model={model}", f"cluster={cluster}", f"precision={dtype}"])
    return Setting(loaded.model, loaded.cluster, loaded.precision.dtype, IMPLEMENTATIONS[trainer])


def with_model(setting: Setting, **values: Any) -> Setting:
    return replace(setting, model=setting.model.model_copy(update=values))


def with_device(setting: Setting, **values: Any) -> Setting:
    return _with_cluster(setting, device=setting.cluster.device.model_copy(update=values))


def with_efficiency(setting: Setting, **values: Any) -> Setting:
    return _with_cluster(setting, efficiency=setting.cluster.efficiency.model_copy(update=values))


def with_links(setting: Setting, **factors: float) -> Setting:
    """Every link's fields multiplied."""
    links = tuple(
        link.model_copy(update={name: getattr(link, name) * factor for name, factor in factors.items()})
        for link in setting.cluster.links
    )
    return _with_cluster(setting, links=links)


def unscaled(setting: Setting) -> Setting:
    return replace(setting, scale=UNSCALED)


def with_trainer(setting: Setting, **values: Any) -> Setting:
    return replace(setting, implementation=setting.implementation.model_copy(update=values))


def _with_cluster(setting: Setting, **values: Any) -> Setting:
    return replace(setting, cluster=setting.cluster.model_copy(update=values))


def shard_of(
    tensor_parallel_size: int = 1,
    micro_batch_size: int = 1,
    *,
    sequence_parallel: bool = False,
    recompute: str = "none",
    context_parallel_size: int = 1,
    expert_parallel_size: int = 1,
) -> Shard:
    return Shard(
        np.array([tensor_parallel_size]),
        np.array([micro_batch_size]),
        np.array([sequence_parallel]),
        np.array([RECOMPUTES.index(recompute)]),
        np.array([context_parallel_size]),
        np.array([expert_parallel_size]),
    )


def plan_of(setting: Setting, *, recompute: str = "none", schedule: str = "1f1b", **sizes: Any) -> Plans:
    """One plan with its layers spread evenly. Sizes go by the names of `Plans`; what is not named is 1, no or 0."""
    p = sizes.get("pipeline_parallel_size", 1)
    layers, more = divmod(setting.model.num_layers, p)
    named = {
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "virtual_pipeline_size": 1,
        "data_parallel_size": 1,
        "micro_batch_size": 1,
        "num_micro_batches": 1,
        "sequence_parallel": False,
        "zero_stage": 0,
        "recompute": RECOMPUTES.index(recompute),
        "schedule": SCHEDULES.index(schedule),
        "first_stage_layers": layers + (more > 0),
        "last_stage_layers": layers,
        "context_parallel_size": 1,
        "expert_parallel_size": 1,
        "recompute_every": 1,
        **sizes,
    }
    return Plans(**{name: np.array([value]) for name, value in named.items()})


def priced(setting: Setting, **plan: Any) -> Prices:
    """What a step of this plan costs; for the plan's arguments see `plan_of`."""
    return price(setting, plan_of(setting, **plan))


def seconds(setting: Setting, **plan: Any) -> float:
    """Of one step."""
    return float(priced(setting, **plan).step_seconds[0])


def stage_memories(setting: Setting, **plan: Any) -> GroupMemory:
    """Of every stage, first to last, in columns of as many entries."""
    plans = plan_of(setting, **plan)
    stages = each_stage([group for group in spread_stages(plans, setting.model.num_layers) if group.count[0] > 0])
    return group_memory(PricedStage(PricedReplicas(setting, plans), work_of(setting, plans), stages))
