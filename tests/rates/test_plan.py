"""What a calibration measures on a cluster, and in which groups."""

from __future__ import annotations

import pytest

from rates.plan import groups_of, link_plans, rates_plan, reference_dtype
from rates.record import LinkPlan
from tests.composed import load_cluster


def test_a_tier_is_measured_by_ranks_that_can_only_meet_through_it() -> None:
    """Frontier: two GCDs a card, four cards a node; two nodes."""
    card, node, network = link_plans(load_cluster("frontier"), 16)
    assert (card.stride, card.num_members) == (1, 2)
    assert (node.stride, node.num_members, node.group_sizes) == (2, 4, (2, 4))
    assert (network.stride, network.num_members, network.group_sizes) == (8, 2, (2,))
    assert groups_of(card, 2, 16)[:2] == [[0, 1], [2, 3]]
    assert groups_of(node, 4, 16) == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]
    assert groups_of(network, 2, 16) == [[rank, rank + 8] for rank in range(8)]


def test_between_nodes_of_gpus_all_their_ranks_are_one_group_too() -> None:
    """What its ring reaches tells how many ports of a node it gets."""
    whole = rates_plan(load_cluster("dgx-h100"), "gpu", 16).links[-1]
    assert (whole.name, whole.group_sizes) == ("infiniband, all ports", (16,))
    assert groups_of(whole, 16, 16) == [list(range(16))]
    assert [link.name for link in rates_plan(load_cluster("dgx-h100"), "gpu", 8).links] == ["nvlink"]


def test_a_tier_wider_than_the_job_is_not_measured() -> None:
    assert [link.name for link in link_plans(load_cluster("frontier"), 8)] == ["card", "node"]
    assert link_plans(load_cluster("local"), 1) == ()


@pytest.mark.parametrize(("num_members", "sizes"), [(2, (2,)), (8, (2, 4, 8)), (6, (2, 6)), (64, (2, 4, 8, 64))])
def test_groups_have_a_few_sizes_that_fill_the_block(num_members: int, sizes: tuple[int, ...]) -> None:
    cluster = load_cluster("local")
    wide = cluster.links[0].model_copy(update={"num_devices": num_members})
    (link,) = link_plans(cluster.model_copy(update={"links": (wide,)}), num_members)
    assert link.group_sizes == sizes


def test_every_rank_is_in_one_group_except_those_of_an_unfinished_block() -> None:
    link = LinkPlan(name="node", stride=2, num_members=4, group_sizes=(2, 4))
    ranks = [rank for group in groups_of(link, 2, 20) for rank in group]
    assert sorted(ranks) == list(range(16))


def test_every_precision_with_a_peak_is_measured_and_one_of_them_states_the_efficiency() -> None:
    frontier, local = load_cluster("frontier"), load_cluster("local")
    assert rates_plan(frontier, "gpu", 16).dtypes == ("bf16", "fp16", "fp32")
    assert reference_dtype("gpu", ("bf16", "fp16", "fp32")) == "bf16"
    assert reference_dtype("gpu", ("fp16", "fp32")) == "fp16"
    assert reference_dtype("cpu", rates_plan(local, "cpu", 2).dtypes) == "fp32"


def test_the_buffers_of_all_ranks_fit_their_devices() -> None:
    small = load_cluster("dgx1-v100")
    plan = rates_plan(small, "gpu", 8)
    assert 3 * plan.memory_bytes < small.device.memory_bytes / 4


def test_a_gpu_computes_attention_for_longer_than_its_host_takes_to_start_it() -> None:
    """Of one sequence of 2,048 tokens an H200 took 0.2 ms, which was its host's time."""
    for name in ("dgx-h200", "selene", "dgx-b200"):
        cluster = load_cluster(name)
        peak = cluster.device.peak_flops_per_second["bf16"]
        for shape in rates_plan(cluster, "gpu", 1).attention_shapes:
            assert shape.flops / peak > 0.2e-3
