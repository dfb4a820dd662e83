"""Fitting all constants at once, and what is left when a table is left out."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.fitting.constants import fitted_constants, prior_values
from benchmarks.fitting.fit import Fit, left_out_ratios, values_without
from benchmarks.fitting.learned import intervals, learned
from benchmarks.measured_rows import MeasuredRow, measured_rows, published_rows


@pytest.fixture(scope="module")
def rows() -> list[MeasuredRow]:
    """A few rows of several clusters."""
    return [row for row in measured_rows(published_rows()) if row.table.startswith(("sc21", "bloom", "llm-foundry"))][
        ::6
    ]


def test_what_is_left_out_does_not_move_the_constants_that_predict_it(rows: list[MeasuredRow]) -> None:
    """Rows of a table that were measured twice as slow are predicted as before by a fit without them."""
    begun = Fit(rows, prior_values())
    slower = [
        MeasuredRow(
            row.place,
            row.table,
            row.series,
            row.compared,
            2 * row.seconds if row.machine.startswith("jean-zay") else row.seconds,
        )
        for row in rows
    ]
    of_bloom = np.array([row.machine.startswith("jean-zay") for row in rows])
    plain, disturbed = (left_out_ratios(each, values_without(each)) for each in (begun, Fit(slower, prior_values())))
    assert disturbed[of_bloom] == pytest.approx(plain[of_bloom] - np.log(2), abs=1e-6)
    assert disturbed[~of_bloom] != pytest.approx(plain[~of_bloom], abs=1e-4)


def test_what_is_learned_names_devices_trainers_and_their_ranges(rows: list[MeasuredRow]) -> None:
    found = learned(rows, np.zeros(len(rows)))
    assert "A100-80GB-SXM" in found.devices
    assert found.trainers["fsdp"]["pipeline"].highest == 1
    assert (found.rows, found.tables) == (len(rows), len({row.table for row in rows}))
    assert len(fitted_constants()) > 20


def test_every_table_makes_as_much_of_an_interval_as_any_other(rows: list[MeasuredRow]) -> None:
    """Of six tables or more, one that is far off is in the tail of the others' intervals, however many rows it has."""
    largest = max(rows, key=lambda row: sum(other.table == row.table for other in rows)).table
    ratios = np.array([-1.0 if row.table == largest else 0.0 for row in rows])
    around = dict(zip([row.place for row in rows], intervals(rows, ratios), strict=True))
    off = next(row for row in rows if row.table == largest)
    assert around[off.place].high_seconds == pytest.approx(off.seconds / np.e)
    assert 1 < learned(rows, ratios).high <= np.e
    assert learned(rows, ratios).low == 1.0
