"""Hybrid sharding: groups of replicas that each hold everything once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.train_core.costs.priced import plan_of, setting_of, stage_memories
from train_core.costs.setting import Setting
from train_core.costs.step.sharing import num_groups, num_shards


@pytest.fixture
def setting() -> Setting:
    return setting_of("llama-3.1-8b", "dgx-h100", trainer="fsdp")


@pytest.mark.parametrize(("group", "shards", "groups"), [(None, 32, 1), (8, 8, 4), (32, 32, 1), (64, 32, 1)])
def test_replicas_share_out_within_their_group(setting: Setting, group: int | None, shards: int, groups: int) -> None:
    hybrid = replace(setting, zero_group_size=group)
    plans = plan_of(hybrid, data_parallel_size=16, context_parallel_size=2)
    assert (num_shards(hybrid, plans)[0], num_groups(hybrid, plans)[0]) == (shards, groups)


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_a_group_holds_what_as_many_replicas_hold(setting: Setting, zero_stage: int) -> None:
    hybrid = stage_memories(replace(setting, zero_group_size=8), data_parallel_size=64, zero_stage=zero_stage)
    alone = stage_memories(setting, data_parallel_size=8, zero_stage=zero_stage)
    assert np.all(hybrid.total_bytes == alone.total_bytes)


def test_groups_of_one_share_out_nothing(setting: Setting) -> None:
    hybrid = stage_memories(replace(setting, zero_group_size=1), data_parallel_size=64, zero_stage=2)
    whole = stage_memories(setting, data_parallel_size=64)
    assert hybrid.optimizer_bytes == whole.optimizer_bytes
