"""Hybrid sharding: groups of replicas that each hold everything once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costs.collectives import ring_of
from costs.setting import Setting
from costs.step.replicas import PricedReplicas, num_shards
from tests.costs.priced import plan_of, seconds, setting_of, stage_memories


@pytest.fixture
def setting() -> Setting:
    return setting_of("llama-3.1-8b", "dgx-h100", trainer="fsdp")


@pytest.mark.parametrize(("group", "shards"), [(None, 32), (8, 8), (32, 32), (64, 32)])
def test_replicas_share_out_within_their_group(setting: Setting, group: int | None, shards: int) -> None:
    hybrid = replace(setting, zero_group_size=group)
    plans = plan_of(hybrid, data_parallel_size=16, context_parallel_size=2)
    assert num_shards(hybrid, plans)[0] == shards


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_a_group_holds_what_as_many_replicas_hold(setting: Setting, zero_stage: int) -> None:
    hybrid = stage_memories(replace(setting, zero_group_size=8), data_parallel_size=64, zero_stage=zero_stage)
    alone = stage_memories(setting, data_parallel_size=8, zero_stage=zero_stage)
    assert np.all(hybrid.total_bytes == alone.total_bytes)


def test_groups_of_one_share_out_nothing(setting: Setting) -> None:
    hybrid = stage_memories(replace(setting, zero_group_size=1), data_parallel_size=64, zero_stage=2)
    whole = stage_memories(setting, data_parallel_size=64)
    assert hybrid.optimizer_bytes == whole.optimizer_bytes


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_groups_gather_among_themselves_and_add_up_shards_with_the_others(setting: Setting, zero_stage: int) -> None:
    """Four nodes, each a group of eight: a node's links carry the whole, those between nodes an eighth of it."""
    hybrid, parameters = replace(setting, zero_group_size=8), np.array([10**9])
    plans = plan_of(hybrid, data_parallel_size=32, zero_stage=zero_stage)
    eight, one, four = np.array([8]), np.array([1]), np.array([4])
    inside = ring_of(setting, eight, one).gather_seconds(2.0 * parameters)
    assert PricedReplicas(hybrid, plans).gather_seconds(parameters, 0 * parameters, 2.0) == pytest.approx(inside)
    across = ring_of(setting, four, eight).all_reduce_seconds(4.0 * parameters / 8)
    assert PricedReplicas(hybrid, plans).across_groups_seconds(parameters, 0, 4.0) == pytest.approx(across)


def test_one_group_of_all_replicas_is_no_hybrid(setting: Setting) -> None:
    plan: dict[str, Any] = {"data_parallel_size": 64, "zero_stage": 3, "micro_batch_size": 1}
    assert seconds(replace(setting, zero_group_size=64), **plan) == seconds(setting, **plan)
