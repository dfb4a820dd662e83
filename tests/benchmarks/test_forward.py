"""Rows that were predicted before anybody had looked at them, and what is said of them."""

from __future__ import annotations

import csv

import pytest

from benchmarks.csv_rows import read_rows
from benchmarks.forward import AS_IT_HAPPENED, AS_OF_TODAY, PUBLISHED_3, WITH_TODAYS_WIDTHS
from benchmarks.level_results import LEVEL_RESULTS, LevelResult, mean_over_tables
from benchmarks.levels import LEVELS
from sweeps.table.prices import PricedRow


@pytest.mark.slow
def test_rows_of_the_forward_test_are_in_no_fit(priced: dict[str, PricedRow]) -> None:
    assert not any(place.startswith(PUBLISHED_3.name) for place in priced)


@pytest.mark.slow
def test_the_forward_test_is_told_as_it_happened_and_with_the_widths_of_today(forward: list[LevelResult]) -> None:
    then, today, now = forward
    assert (then.level, today.level, now.level) == (AS_IT_HAPPENED, WITH_TODAYS_WIDTHS, AS_OF_TODAY)
    assert then[1:5] == today[1:5]  # the predictions are those of that day in both
    with PUBLISHED_3.open(newline="") as file:
        rows = list(csv.DictReader(file))
    new = [row for row in rows if row["forward_iter_time_s"] and not row["seen_configuration"] and not row["set_aside"]]
    assert 0.9 * len(new) < then.rows <= len(new)
    assert then.inside < 0.45
    assert 0.75 <= today.inside <= 0.88
    assert today.width > then.width
    assert (now.tables, now.rows) == (then.tables, then.rows)
    assert now.error < 0.7 * then.error
    assert now.inside >= today.inside  # mechanisms were chosen by these rows, and widths were not


def test_every_level_was_written_and_the_more_is_left_out_the_larger_the_error() -> None:
    levels = read_rows(LEVEL_RESULTS, LevelResult)
    assert [each.level for each in levels] == list(LEVELS)
    errors = [each.error for each in levels]
    assert errors == sorted(errors)
    assert len({each.rows for each in levels}) == 1


def test_every_table_counts_as_much_as_any_other() -> None:
    assert mean_over_tables([1.0, 1.0, 1.0, 0.0], ["a", "a", "a", "b"]) == pytest.approx(0.5)
