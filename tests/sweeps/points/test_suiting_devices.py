"""A sweep that nobody gave a number of devices takes as many as suit its points."""

from __future__ import annotations

import pytest

from conf.compose.tree import value_at
from sweeps.points.plan import part_of
from tests.composed import composed


def size_of(*overrides: str) -> object:
    asked = composed(overrides)
    assert asked.settings.sweep is not None
    return value_at(part_of(asked, asked.settings.sweep, proxy=False).tree, "parallel.world_size")


def test_the_whole_cluster_stays_open_where_its_devices_suit() -> None:
    assert size_of("sweep=175b") is None


def test_devices_that_the_batch_does_not_divide_are_left_out() -> None:
    assert size_of("sweep=175b", "cluster=selene") == 2560  # of 3,072: 5,120 has no factor of 3


def test_a_number_that_was_asked_for_is_taken_although_little_suits_it() -> None:
    assert size_of("sweep=175b", "cluster=selene", "parallel.world_size=3072") == 3072


def test_a_file_that_states_more_devices_than_there_are_is_met_with_fewer() -> None:
    assert size_of("sweep=1t") == 3072
    assert size_of("sweep=1t", "cluster=selene") == 3072
    size = size_of("sweep=1t", "cluster=jupiter", "precision=bf16")
    assert isinstance(size, int)
    assert 512 <= size <= 1536


@pytest.mark.parametrize("search", ["bayes", "planner"])
def test_what_a_search_asks_for_is_on_devices_that_its_baseline_divides(search: str) -> None:
    assert size_of("sweep=175b", "cluster=selene", f"search={search}") == 2560


def test_nothing_is_left_out_where_no_number_suits_any_point() -> None:
    # Nodes of 12, and a batch without a factor of 3.
    assert size_of("sweep=175b", "cluster=aurora") is None
