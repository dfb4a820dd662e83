"""Sockets and memory of a host, read from a folder like the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train_core.watch.energy.hosts import RANGE_JOULES, two_sockets
from train_core.watch.energy.counter import FollowedCounter
from train_core.watch.energy.meter import rapl_counters


def test_sockets_and_their_memory_are_counted_and_nothing_twice(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    counters = rapl_counters("device", tmp_path)
    assert [counter.name.split()[1] for counter in counters] == ["package-0", "dram", "package-1", "dram"]
    assert [counter.read() for counter in counters] == [1000.0, 100.0, 2000.0, 300.0]
    assert len({counter.name for counter in counters}) == len(counters)


def test_a_counter_that_starts_again_goes_on_counting(tmp_path: Path) -> None:
    host = two_sockets(tmp_path)
    host.set("intel-rapl:0", RANGE_JOULES - 10)
    followed = FollowedCounter(rapl_counters("device", tmp_path)[0])
    host.set("intel-rapl:0", RANGE_JOULES - 4)
    followed.follow()
    host.set("intel-rapl:0", 3)
    followed.follow()
    assert followed.joules == pytest.approx(6 + 7)


def test_a_host_whose_counters_only_root_may_read_has_none(tmp_path: Path) -> None:
    """As root may read everything, the file is one that nobody can read: a folder."""
    two_sockets(tmp_path)
    energy = tmp_path / "intel-rapl:1" / "energy_uj"
    energy.unlink()
    energy.mkdir()
    assert rapl_counters("device", tmp_path) == []


def test_a_host_without_counters_has_none(tmp_path: Path) -> None:
    assert rapl_counters("host", tmp_path / "absent") == []


def test_a_counter_that_stops_answering_is_lost_rather_than_half_counted(tmp_path: Path) -> None:
    host = two_sockets(tmp_path)
    followed = FollowedCounter(rapl_counters("device", tmp_path)[0])
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("")
    followed.follow()
    host.set("intel-rapl:0", 2000.0)
    followed.follow()
    assert followed.joules is None
