"""Where ranks sit, against placements written out by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from costs.collectives import ring_of, transfer_seconds
from costs.setting import Setting
from costs.step.replicas import (
    PricedReplicas,
    RankGroup,
    expert_replicas,
    pipeline_extent,
    replica_group,
    same_shard_group,
    stage_stride,
)
from costs.step.step_time import hop_seconds
from costs.work import work_of
from tests.costs.priced import (
    plan_of,
    seconds,
    setting_of,
    unscaled,
    with_efficiency,
    with_links,
    with_model,
)


def placed(pipeline_before_data: bool, model: str = "gpt-175b", **values: Any) -> Setting:
    """On Selene, eight GPUs a node at 300 GB/s, between nodes 25 GB/s for each, all of which is reached."""
    setting = setting_of(model, "selene", trainer="megatron-core")
    reached = with_links(with_efficiency(unscaled(setting), link=1.0), latency_seconds=0.0)
    return replace(reached, pipeline_before_data=pipeline_before_data, **values)


def ranks_of(order: tuple[str, ...], sizes: dict[str, int]) -> dict[tuple[int, ...], int]:
    """The rank of every (tensor, context, pipeline, data) coordinate, the first axis of the order varying fastest."""
    found = {}
    for rank, reversed_coordinate in enumerate(product(*(range(sizes[axis]) for axis in reversed(order)))):
        coordinate = dict(zip(reversed(order), reversed_coordinate, strict=True))
        found[tuple(coordinate[axis] for axis in ("tensor", "context", "pipeline", "data"))] = rank
    return found


def members(group: RankGroup) -> list[int]:
    """The ranks of the group that rank 0 is in."""
    size, stride = group.num_ranks.item(), group.stride.item()
    if group.runs is None:
        return [stride * index for index in range(size)]
    length, jump = (each.item() for each in group.runs)
    return [jump * (index // length) + stride * (index % length) for index in range(size)]


@pytest.mark.parametrize("pipeline_before_data", [False, True])
@pytest.mark.parametrize(("t", "c", "p", "d"), [(2, 1, 4, 4), (2, 2, 2, 4), (1, 4, 2, 2), (8, 1, 2, 2)])
def test_groups_are_those_of_the_ranks_written_out(pipeline_before_data: bool, t: int, c: int, p: int, d: int) -> None:
    inner = ("tensor", "context")
    order = (*inner, "pipeline", "data") if pipeline_before_data else (*inner, "data", "pipeline")
    ranks = ranks_of(order, {"tensor": t, "context": c, "pipeline": p, "data": d})
    setting = placed(pipeline_before_data)
    plans = plan_of(
        setting,
        tensor_parallel_size=t,
        context_parallel_size=c,
        pipeline_parallel_size=p,
        data_parallel_size=d,
    )
    replicas = sorted(ranks[0, context, 0, data] for context in range(c) for data in range(d))
    assert stage_stride(setting, plans) == ranks[0, 0, 1, 0]
    assert members(replica_group(setting, plans, plans.num_replicas)) == replicas
    # The first replica of the first and of the second stage hold the same tied embedding.
    assert pipeline_extent(setting, plans) == p * ranks[0, 0, 1, 0]
    for size in (size for size in (1, 2, 4) if c * d % size == 0):
        hybrid = replace(setting, zero_group_size=size)
        assert members(same_shard_group(hybrid, plans)) == replicas[::size]


@pytest.mark.parametrize(
    ("pipeline_before_data", "hop", "gather"),
    [
        (False, 1 / 25, 3 / 4 / 300),  # rank 0 sends to rank 8, on the next node, and gathers with 2, 4 and 6
        (True, 1 / 300, 3 / 4 / 25),  # rank 0 sends to rank 2, and gathers with 8, 16 and 24: one of each node
    ],
)
def test_the_order_says_whether_stages_or_replicas_share_a_node(
    pipeline_before_data: bool, hop: float, gather: float
) -> None:
    setting = placed(pipeline_before_data)
    sizes: dict[str, Any] = {"tensor_parallel_size": 2, "pipeline_parallel_size": 4, "data_parallel_size": 4}
    plans = plan_of(setting, **sizes, sequence_parallel=True, zero_stage=1)
    work = work_of(setting, plans)
    assert hop_seconds(setting, plans, work) == pytest.approx(work.hidden_bytes / 2 / 1e9 * hop)
    assert PricedReplicas(setting, plans).gather_seconds(np.array([5 * 10**8]), 0, 2.0) == pytest.approx(gather)


def test_all_stages_wait_for_the_hop_that_leaves_the_node() -> None:
    """Eight stages of two GPUs take two nodes, and one of their seven hops crosses."""
    setting = placed(True)
    sizes: dict[str, Any] = {"tensor_parallel_size": 2, "pipeline_parallel_size": 8, "data_parallel_size": 2}
    plans = plan_of(setting, **sizes, sequence_parallel=True)
    work = work_of(setting, plans)
    between = transfer_seconds(setting, work.hidden_bytes / 2, np.array([8]))
    assert hop_seconds(setting, plans, work) == pytest.approx(between)


def test_context_ranks_are_neighbours_and_replicas_of_a_pipeline_are_not() -> None:
    """Two context ranks of a node gather with two on the next: 2 GPUs times 25 GB/s, not 4 members in one node."""
    setting = placed(True)
    sizes: dict[str, Any] = {"context_parallel_size": 2, "pipeline_parallel_size": 4, "data_parallel_size": 2}
    plans = plan_of(setting, **sizes, zero_stage=1)
    found = PricedReplicas(setting, plans).gather_seconds(np.array([5 * 10**8]), 0, 2.0)
    assert found == pytest.approx(3 / 4 / 50)
    inside = placed(False)
    assert PricedReplicas(inside, plans).gather_seconds(np.array([5 * 10**8]), 0, 2.0) == pytest.approx(3 / 4 / 300)


@pytest.mark.parametrize(("group", "apart"), [(2, 2), (1, 1)])
def test_groups_that_share_out_add_up_over_whole_pipelines(group: int, apart: int) -> None:
    setting = placed(True, zero_group_size=group)
    plans = plan_of(setting, pipeline_parallel_size=8, data_parallel_size=4, zero_stage=1)
    shard = 4.0 * np.array([10**9]) / group
    expected = ring_of(setting, np.array([4 // group]), np.array([8 * apart])).all_reduce_seconds(shard)
    assert PricedReplicas(setting, plans).across_groups_seconds(np.array([10**9]), 0, 4.0) == pytest.approx(expected)


def test_a_tied_embedding_is_added_up_over_the_length_of_one_pipeline() -> None:
    """Four stages of two GPUs fill a node; with replicas between them they reach over eight nodes."""
    plan: dict[str, Any] = {"tensor_parallel_size": 2, "pipeline_parallel_size": 4, "data_parallel_size": 8}

    def of_tying(setting: Setting) -> float:
        tied, untied = (with_model(setting, tied_embeddings=tied) for tied in (True, False))
        return seconds(tied, **plan) - seconds(untied, **plan)

    assert of_tying(placed(False)) == pytest.approx(300 / 25 * of_tying(placed(True)))


def test_experts_of_two_pipelines_are_a_whole_pipeline_apart() -> None:
    """Eight expert ranks fill a stage; the four ranks that hold the same experts are 8 x 2 devices apart."""
    setting = placed(True, model="mixtral-8x7b", expert_tensor_parallel_size=1)
    sizes: dict[str, Any] = {"tensor_parallel_size": 4, "context_parallel_size": 2, "expert_parallel_size": 8}
    plans = plan_of(setting, **sizes, pipeline_parallel_size=2, data_parallel_size=4, zero_stage=1)
    experts = np.array([10**9])
    assert expert_replicas(setting, plans) == 4
    found = PricedReplicas(setting, plans).gather_seconds(experts, experts, 2.0)
    assert found == pytest.approx(ring_of(setting, np.array([4]), np.array([16])).gather_seconds(2.0 * experts))


def test_the_order_means_nothing_with_one_stage() -> None:
    plan: dict[str, Any] = {"tensor_parallel_size": 2, "data_parallel_size": 32, "context_parallel_size": 2}
    assert seconds(placed(True), **plan, zero_stage=1) == seconds(placed(False), **plan, zero_stage=1)
