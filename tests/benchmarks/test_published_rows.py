"""The published rows in the tree: facts with their sources, and readings that nothing else decides."""

from __future__ import annotations

import csv

import pytest

from benchmarks.published_rows import PUBLISHED
from conf.folders import options
from costs import estimates
from sweeps.table.configuration import configuration_of
from sweeps.table.prices import PricedRow, read_table, unread_sentence

PUBLISHED_2 = PUBLISHED.with_name("published_2.csv")


def rows() -> list[dict[str, str]]:
    with PUBLISHED_2.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_row_names_its_source_its_series_and_its_set() -> None:
    assert all(row["source"] and row["table"] and row["series"] and row["set"] for row in rows())
    assert {row["confirmed"] for row in rows()} == {"yes", "partial"}


@pytest.mark.parametrize("number", ["", "_2", "_3", "_4", "_5"])
def test_every_published_row_says_who_measured_it(number: str) -> None:
    found = read_table(PUBLISHED.with_name(f"published{number}.csv"))
    assert {record.row["measured_by"] for record in found.records} <= {"users", "makers", "papers"}
    assert "measured_by" not in (unread_sentence(found.columns) or "")


def test_clusters_that_rows_name_are_files() -> None:
    assert {row["cluster"] for row in rows()} - {""} <= set(options("cluster"))


@pytest.mark.slow
def test_every_row_of_todays_tables_is_priced(
    priced: dict[str, PricedRow],
) -> None:
    of_file = [row for place, row in priced.items() if place.startswith(PUBLISHED_2.name)]
    assert len(of_file) == len(rows())
    assert [row.reason for row in of_file if row.prediction is None] == []


@pytest.mark.slow
def test_runs_whose_host_waited_for_every_kernel_are_nearer_to_their_price_with_it(
    priced: dict[str, PricedRow],
) -> None:
    blocked = [row for row in priced.values() if row.record.row.get("launch_blocking") == "yes"]
    assert len(blocked) == 2
    for row in blocked:
        assert row.prediction is not None
        without = configuration_of({**row.record.row, "launch_blocking": ""})
        measured, found = float(row.record.row["iter_time_s"]), row.prediction.estimate.step_seconds
        assert estimates([(without.setup, without.implementation)])[0].step_seconds < 0.9 * found < found < measured
