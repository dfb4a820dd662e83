"""Tests that share a Slurm cluster, or worlds of ranks, run on one worker."""

from __future__ import annotations

import os

import pytest

from tests.conftest import FURTHER_CLUSTERS, SHARED, dealt_groups


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="all tests run in this process")
def test_workers_know_the_groups(request: pytest.FixtureRequest) -> None:
    """pytest-xdist reads them from the ends of names, which some versions of pytest do not let it write."""
    assert [item.nodeid for item in request.session.items if "@" not in item.nodeid] == []


def test_tests_on_slurm_and_no_others_are_in_its_groups(request: pytest.FixtureRequest) -> None:
    """Which worker a test runs on depends on names of fixtures; a group must have its cluster to itself."""
    for item in request.session.items:
        groups = [mark.args[0] for mark in item.iter_markers("xdist_group")]
        is_on_slurm = groups[0] in (SHARED["slurm_cluster"], *FURTHER_CLUSTERS)
        assert is_on_slurm == (item.get_closest_marker("slurm") is not None), item.nodeid


@pytest.mark.parametrize(
    ("num_workers", "dealt"), [(0, "abcdef"), (2, "abefcd"), (3, "abcdef"), (4, "abcdef"), (8, "abcdef")]
)
def test_the_group_that_waits_behind_a_worker_s_first_is_a_short_one(num_workers: int, dealt: str) -> None:
    assert "".join(dealt_groups([*"abcdef"], num_workers)) == dealt
