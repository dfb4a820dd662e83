"""Rows that were predicted before anybody had looked at them, and what is said of them."""

from __future__ import annotations

import csv

import pytest

from benchmarks.forward import FORWARD_TESTS
from benchmarks.left_out import read_rows
from benchmarks.levels import LEVEL_RESULTS, LEVELS, LevelResult, mean_over_tables
from sweeps.table.prices import PricedRow


@pytest.mark.slow
def test_rows_of_a_forward_test_are_in_no_fit(priced: dict[str, PricedRow]) -> None:
    assert not any(place.startswith(test.path.name) for place in priced for test in FORWARD_TESTS)


@pytest.mark.slow
def test_each_forward_test_is_told_as_it_happened_and_as_its_rows_are_predicted_today(
    forward: list[LevelResult],
) -> None:
    assert [each.level for each in forward] == [
        name for test in FORWARD_TESTS for name in (test.as_it_happened, test.as_of_today)
    ]
    for test, then, now in zip(FORWARD_TESTS, forward[::2], forward[1::2], strict=True):
        with test.path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        new = [
            row for row in rows if row["forward_iter_time_s"] and not row["seen_configuration"] and not row["set_aside"]
        ]
        assert 0.9 * len(new) < then.rows <= len(new)
        assert (now.tables, now.rows) == (then.tables, then.rows)
        assert now.error < then.error
    first, second = forward[0], forward[2]
    assert first.inside < 0.45 < 0.75 <= second.inside <= 0.88


def test_every_level_was_written_and_errors_grow_where_more_than_a_table_is_left_out() -> None:
    levels = read_rows(LEVEL_RESULTS, LevelResult)
    assert [each.level for each in levels] == list(LEVELS)
    table, source, *wider = [each.error for each in levels]
    assert table < source < min(wider)
    assert len({each.rows for each in levels}) == 1


def test_every_table_counts_as_much_as_any_other() -> None:
    assert mean_over_tables([1.0, 1.0, 1.0, 0.0], ["a", "a", "a", "b"]) == pytest.approx(0.5)
