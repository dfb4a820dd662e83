"""Rings over the tiers of a cluster, against arithmetic by hand.

Selene: 8 GPUs a node at 300 GB/s, between nodes 25 GB/s for each GPU. Frontier: 2 GCDs a card at 200 GB/s, 4 cards a
node at 50 GB/s for each GCD, between nodes 12.5 GB/s for each.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costs.collectives import (
    pace_of,
    pair_seconds,
    quick_ring_of,
    ring_of,
    shown_seconds,
    transfer_seconds,
)
from costs.setting import Scale, Setting
from tests.costs.priced import setting_of, unscaled, with_efficiency, with_links

GIGA = 1e9


def full_rate(cluster: str) -> Setting:
    """The cluster with links that reach what their makers state, over however many nodes."""
    return unscaled(with_efficiency(setting_of("gpt-175b", cluster), link=1.0))


def full_mesh() -> Setting:
    """MI300X, whose wires carry the 64 GB/s that the maker states of each."""
    setting = full_rate("mi300x")
    wires, *others = setting.cluster.links
    links = (wires.model_copy(update={"bandwidth_bytes_per_second": 7 * 64 * GIGA}), *others)
    return replace(setting, cluster=setting.cluster.model_copy(update={"links": links}))


def ring_rate(setting: Setting, num_ranks: int, stride: int = 1) -> float:
    """GB per second."""
    return float(ring_of(setting, np.array([num_ranks]), np.array([stride])).bandwidth[0] / GIGA)


def of_one(seconds: np.ndarray) -> float:
    return float(seconds[0])


ONE, BYTES = np.array([1]), np.array([1e9])


@pytest.mark.parametrize(
    ("num_ranks", "stride", "rate"),
    [
        (2, 1, 64),  # the one link between two GPUs
        (4, 1, 192),  # three links of each
        (8, 1, 448),
        (2, 4, 64),
        (16, 1, 400),  # two nodes: eight ports of 50 GB/s are less than the seven links
    ],
)
def test_without_a_switch_a_small_group_uses_only_the_wires_between_its_members(
    num_ranks: int, stride: int, rate: float
) -> None:
    assert ring_rate(full_mesh(), num_ranks, stride) == pytest.approx(rate)


def test_a_pair_without_a_switch_has_one_wire() -> None:
    # 1 GB, half of it either way, twice: 1 GB at 64 GB/s, and two latencies of 5 microseconds.
    assert of_one(pair_seconds(full_mesh(), BYTES, np.array([2]))) == pytest.approx(1 / 64 + 1e-5)


@pytest.mark.parametrize(
    ("num_ranks", "stride", "rate"),
    [
        (2, 1, 300),  # inside a node
        (8, 1, 300),
        (16, 1, 200),  # two nodes, through the ports of the eight members of each
        (64, 1, 200),
        (4, 8, 25),  # one member a node, and its own port
        (4, 4, 50),  # two members a node
        (2, 4, 300),
    ],
)
def test_a_ring_over_nodes_uses_the_ports_of_all_its_members(num_ranks: int, stride: int, rate: float) -> None:
    assert ring_rate(full_rate("selene"), num_ranks, stride) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("num_ranks", "stride", "rate"),
    [
        (2, 1, 200),  # inside a card
        (4, 1, 100),  # two cards, two GCDs each
        (8, 1, 100),
        (4, 2, 50),  # one GCD of every card
        (16, 1, 100),  # eight ports of 12.5 GB/s a node, no less than the tier between cards
        (2, 8, 12.5),
    ],
)
def test_a_ring_on_frontier_is_bound_by_the_slowest_tier_that_it_crosses(
    num_ranks: int, stride: int, rate: float
) -> None:
    assert ring_rate(full_rate("frontier"), num_ranks, stride) == pytest.approx(rate)


@pytest.mark.parametrize(("ports", "rate"), [(None, 200), (8, 200), (2, 50), (1, 25)])
def test_a_ring_over_nodes_uses_no_more_ports_than_were_measured(ports: int | None, rate: float) -> None:
    setting = full_rate("selene")
    inside, network = setting.cluster.links
    links = (inside, network.model_copy(update={"ring_ports": ports}))
    measured = replace(setting, cluster=setting.cluster.model_copy(update={"links": links}))
    assert ring_rate(measured, 16) == pytest.approx(rate)
    assert ring_rate(measured, 8) == ring_rate(setting, 8)
    assert ring_rate(measured, 2, stride=8) == pytest.approx(25)


def test_a_slow_tier_inside_the_node_binds_a_ring_over_nodes() -> None:
    """Cards that meet at 10 GB/s for each GCD: 20 with two GCDs each, where eight ports out of the node make 100."""
    setting = full_rate("frontier")
    card, node, slingshot = setting.cluster.links
    slow = node.model_copy(update={"bandwidth_bytes_per_second": 10 * GIGA})
    cluster = setting.cluster.model_copy(update={"links": (card, slow, slingshot)})
    assert ring_rate(replace(setting, cluster=cluster), 16) == pytest.approx(20)


def test_a_node_that_the_group_does_not_fill_sets_the_rate() -> None:
    """Twelve ranks: eight on one node, four on the next, which have four ports."""
    assert ring_rate(full_rate("selene"), 12) == pytest.approx(100)
    assert ring_rate(full_rate("selene"), 3, stride=4) == pytest.approx(25)


def test_a_group_wider_than_the_cluster_stays_on_the_widest_tier() -> None:
    assert ring_rate(full_rate("selene"), 2**16) == pytest.approx(200)


def test_links_reach_their_share() -> None:
    assert ring_rate(with_efficiency(full_rate("selene"), link=0.5), 8) == pytest.approx(150)


def test_every_doubling_of_the_nodes_takes_a_tenth_of_the_bandwidth_between_them_and_none_of_that_inside() -> None:
    tapered = replace(full_rate("selene"), scale=Scale(shown=0.0, latency=1.0, slowest=0.0, taper=0.1, start=0.0))
    rates = [ring_rate(tapered, num_ranks) for num_ranks in (8, 16, 32, 128)]
    assert rates == pytest.approx([300, 200 / 1.1, 200 / 1.2, 200 / 1.4])


def test_a_switch_that_several_nodes_share_tapers_for_none_of_its_devices() -> None:
    """In an NVL72 rack every GPU has its own port, whichever tray it is in; the network between racks tapers."""
    tapered = replace(full_rate("gb200-nvl72"), scale=Scale(shown=0.0, latency=1.0, slowest=0.0, taper=0.1, start=0.0))
    rates = [ring_rate(tapered, num_ranks) for num_ranks in (2, 4, 8, 72)]
    assert rates == pytest.approx([rates[0]] * 4)
    between = [ring_rate(tapered, num_racks, 72) for num_racks in (2, 4)]
    assert between[0] / between[1] == pytest.approx(1.2 / 1.1)


def test_every_hop_takes_as_many_times_its_latency_as_the_scale_says() -> None:
    slow = replace(full_rate("selene"), scale=Scale(shown=0.0, latency=3.0, slowest=0.0, taper=0.0, start=0.0))
    fast, slowed = (ring_of(setting, np.array([16]), ONE).latency_seconds for setting in (full_rate("selene"), slow))
    assert of_one(slowed) == pytest.approx(3 * of_one(fast))


def test_a_collective_of_gpus_starts_once_however_often_it_goes_round_and_one_of_a_rank_alone_never() -> None:
    started = replace(full_rate("selene"), scale=Scale(shown=0.0, latency=1.0, slowest=0.0, taper=0.0, start=1.0))
    ring, nothing = ring_of(started, np.array([8]), ONE), np.zeros(1)
    once, twice = of_one(ring.gather_seconds(nothing)), of_one(ring.all_reduce_seconds(nothing))
    one_pass = of_one(ring.pass_seconds(nothing))
    assert (once, twice) == pytest.approx((1 + one_pass, 1 + 2 * one_pass))
    assert of_one(ring_of(started, ONE, ONE).gather_seconds(np.zeros(1))) == 0.0


def test_of_what_is_hidden_a_share_shows_and_of_the_rest_all() -> None:
    setting = replace(full_rate("selene"), scale=Scale(shown=0.25, latency=1.0, slowest=0.0, taper=0.0, start=0.0))
    communication = np.array([4.0, 4.0, 4.0])
    computation = np.array([0.0, 3.0, 9.0])
    assert list(shown_seconds(setting, communication, computation)) == pytest.approx([4, 1 + 3 / 4, 1])
    assert list(shown_seconds(setting, communication, computation, overlap=0.0)) == [4, 4, 4]


def test_a_hidden_collective_at_a_quarter_of_the_pace_shows_less_by_three_eighths() -> None:
    """Half of what it takes is memory bandwidth, which it takes only as fast as its bytes arrive."""
    setting = replace(full_rate("selene"), scale=Scale(shown=0.25, latency=1.0, slowest=0.0, taper=0.0, start=0.0))
    hidden, half_hidden = shown_seconds(setting, np.array([4.0, 4.0]), np.array([9.0, 2.0]), pace=0.25)
    assert (hidden, half_hidden) == pytest.approx((4 * 0.25 * 5 / 8, 2 + 2 * 0.25 * 5 / 8))


@pytest.mark.parametrize(("num_ranks", "stride", "pace"), [(8, 1, 1), (16, 1, 200 / 300), (4, 8, 25 / 300)])
@pytest.mark.parametrize("link", [1.0, 0.5])
def test_the_pace_of_a_ring_is_a_share_of_what_the_fastest_link_reaches(
    num_ranks: int, stride: int, pace: float, link: float
) -> None:
    setting, ranks = with_efficiency(full_rate("selene"), link=link), np.array([num_ranks])
    quick = quick_ring_of(setting, ranks)
    wire = replace(ring_of(setting, ranks, np.array([stride])), latency_seconds=np.zeros(1))
    assert of_one(pace_of(wire.gather_seconds(BYTES), quick.gather_seconds(BYTES))) == pytest.approx(pace)
    # With a latency as long as the bytes take, these arrive half as fast.
    late = replace(wire, latency_seconds=wire.pass_seconds(BYTES))
    assert of_one(pace_of(late.gather_seconds(BYTES), quick.gather_seconds(BYTES))) == pytest.approx(pace / 2)


def test_what_moves_nothing_has_no_pace() -> None:
    assert of_one(pace_of(np.zeros(1), np.zeros(1))) == 0


@pytest.mark.parametrize("stride", [1, 8])
@pytest.mark.parametrize("cluster", ["selene", "frontier", "local"])
def test_a_group_of_one_costs_nothing(cluster: str, stride: int) -> None:
    setting, strides = full_rate(cluster), np.array([stride])
    assert of_one(ring_of(setting, ONE, strides).gather_seconds(BYTES)) == 0
    assert of_one(ring_of(setting, ONE, strides).all_reduce_seconds(BYTES)) == 0


@pytest.mark.parametrize("num_ranks", [2, 8, 12, 64])
def test_without_latency_twice_the_bytes_take_twice_the_time(num_ranks: int) -> None:
    setting, ranks = with_links(full_rate("frontier"), latency_seconds=0.0), np.array([num_ranks])
    ring = ring_of(setting, ranks, ONE)
    for collective in (ring.gather_seconds, ring.all_reduce_seconds):
        once, twice = (of_one(collective(factor * BYTES)) for factor in (1, 2))
        assert twice == pytest.approx(2 * once)


def test_a_gather_passes_all_bytes_but_its_own_through_every_rank() -> None:
    setting = with_links(full_rate("selene"), latency_seconds=0.0)
    assert of_one(ring_of(setting, np.array([4]), ONE).gather_seconds(BYTES)) == pytest.approx(0.75 / 300)


def test_an_all_reduce_is_a_reduce_scatter_and_a_gather() -> None:
    setting, ranks = full_rate("selene"), np.array([16])
    gather = of_one(ring_of(setting, ranks, ONE).gather_seconds(BYTES))
    assert of_one(ring_of(setting, ranks, ONE).all_reduce_seconds(BYTES)) == pytest.approx(2 * gather)


def test_latency_counts_the_hops_inside_every_node_and_the_hops_between_nodes() -> None:
    """Sixteen ranks on two nodes: seven hops of NVLink on each and one of InfiniBand."""
    nvlink, infiniband = (link.latency_seconds for link in full_rate("selene").cluster.links)
    for num_ranks, nodes in ((8, 1), (16, 2), (64, 8)):
        expected = 7 * nodes * nvlink + (nodes - 1) * infiniband
        assert of_one(ring_of(full_rate("selene"), np.array([num_ranks]), ONE).latency_seconds) == pytest.approx(
            expected
        )


def test_a_transfer_takes_the_tier_between_the_two_devices() -> None:
    setting = with_links(full_rate("frontier"), latency_seconds=0.0)
    rates = [1 / of_one(transfer_seconds(setting, BYTES, np.array([stride]))) for stride in (1, 2, 4, 8)]
    assert rates == pytest.approx([200, 50, 50, 12.5])


@pytest.mark.parametrize(("num_devices", "rate"), [(2, 200), (4, 50), (8, 50), (16, 12.5), (2**16, 12.5)])
def test_two_ends_of_a_job_meet_on_the_tier_that_spans_it(num_devices: int, rate: float) -> None:
    """Each sends half of the bytes and receives the other half, twice."""
    setting = with_links(full_rate("frontier"), latency_seconds=0.0)
    assert of_one(pair_seconds(setting, BYTES, np.array([num_devices]))) == pytest.approx(1 / rate)
