"""What measured rates change in the file of a cluster."""

from __future__ import annotations

import pytest

from calibrate.measured_changes import measured_changes
from rates.record import LinkTime, MeasuredSpread
from tests.calibrate.conftest import rates_of
from tests.composed import load_cluster


def gather(num_ranks: int, num_bytes: int, bandwidth: float, link: str = "infinity-fabric") -> LinkTime:
    seconds = (num_ranks - 1) * 5e-6 + num_bytes * (num_ranks - 1) / num_ranks / bandwidth
    spread = MeasuredSpread(median=seconds, lowest=seconds, highest=seconds)
    return LinkTime(link=link, pattern="all_gather", num_ranks=num_ranks, num_bytes=num_bytes, seconds=spread)


def test_without_a_switch_a_tiers_bandwidth_is_that_of_its_largest_groups() -> None:
    """Two GPUs share one wire of 64 GB/s, eight reach all seven of each."""
    cluster = load_cluster("mi300x")
    times = [
        gather(ranks, num_bytes, bandwidth)
        for ranks, bandwidth in ((2, 64e9), (4, 192e9), (8, 448e9))
        for num_bytes in (2**20, 2**24, 2**28)
    ]
    rates = rates_of(cluster, "gpu", 8, product=5e14).model_copy(update={"link_times": tuple(times)})
    (found,) = [
        change
        for change in measured_changes(cluster, rates, "today")
        if change.path == ("links", 0, "bandwidth_bytes_per_second")
    ]
    assert found.after == pytest.approx(448e9, rel=1e-3)


@pytest.mark.parametrize(("ring", "ports"), [(400e9, 8), (101e9, 2), (48e9, 1)])
def test_the_ports_of_a_ring_are_what_one_over_all_ranks_reaches_over_what_a_port_does(ring: float, ports: int) -> None:
    cluster, sizes = load_cluster("dgx-h100"), (2**20, 2**24, 2**28)
    times = [gather(2, num_bytes, 50e9, "infiniband") for num_bytes in sizes]
    times += [gather(16, num_bytes, ring, "infiniband, all ports") for num_bytes in sizes]
    rates = rates_of(cluster, "gpu", 16, product=5e14).model_copy(update={"link_times": tuple(times)})
    changes = {change.path: change.after for change in measured_changes(cluster, rates, "today")}
    assert changes["links", 1, "ring_ports"] == ports
    assert changes["links", 1, "bandwidth_bytes_per_second"] == pytest.approx(50e9, rel=0.01)


def test_a_job_within_a_node_tells_nothing_of_ports() -> None:
    cluster = load_cluster("dgx-h100")
    changes = measured_changes(cluster, rates_of(cluster, "gpu", 8, product=5e14), "today")
    assert not [change for change in changes if change.leaf == "ring_ports"]
