"""Fitting all constants at once, and what is left when a table is left out."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.fitting.constants import fitted_constants, prior_values
from benchmarks.fitting.fit import ConstantsFit, left_out_ratios, values_without
from benchmarks.fitting.learned import intervals, lessons_of
from benchmarks.levels import LEVELS, groups_left_out
from benchmarks.practices import who_measured
from benchmarks.published_rows import MeasuredRow, measured_rows
from sweeps.confidence import width_of
from sweeps.practice import PRACTICES, load_levels
from sweeps.table.prices import PricedRow


@pytest.fixture(scope="module")
def rows(priced: dict[str, PricedRow]) -> list[MeasuredRow]:
    """A few rows of several clusters."""
    return [row for row in measured_rows(priced) if row.table.startswith(("sc21", "bloom", "llm-foundry"))][::6]


@pytest.mark.thorough  # than test_validation, whose page is made by the same fits
@pytest.mark.slow
def test_what_is_left_out_does_not_move_the_constants_that_predict_it(rows: list[MeasuredRow]) -> None:
    """Rows of a table that were measured twice as slow are predicted as before by a fit without them."""
    begun = ConstantsFit(rows, prior_values())
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
    plain, disturbed = (
        left_out_ratios(each, values_without(each)) for each in (begun, ConstantsFit(slower, prior_values()))
    )
    assert disturbed[of_bloom] == pytest.approx(plain[of_bloom] - np.log(2), abs=1e-6)
    assert disturbed[~of_bloom] != pytest.approx(plain[~of_bloom], abs=1e-4)


@pytest.mark.slow
def test_what_is_learned_names_trainers_and_their_ranges(rows: list[MeasuredRow]) -> None:
    found = lessons_of(rows, np.zeros(len(rows)))
    assert found.sources == {"fsdp": 1, "megatron-deepspeed": 2, "megatron-lm": 2}
    assert found.trainers["fsdp"]["pipeline"].highest == 1
    assert (found.rows, found.tables) == (len(rows), len({row.table for row in rows}))
    assert len(fitted_constants()) > 20


@pytest.mark.slow
def test_an_interval_goes_by_who_measured_and_not_by_errors_of_the_same_rows(rows: list[MeasuredRow]) -> None:
    off = np.full(len(rows), -0.5)
    for row, (low, high) in zip(rows, intervals(rows, off), strict=True):
        level = load_levels()[PRACTICES[who_measured(row)]]
        width = width_of(row.run.setup)
        seconds = row.seconds * np.exp(-0.5)
        assert (low, high) == pytest.approx((seconds * np.exp(level.low * width), seconds * np.exp(level.high * width)))


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_what_is_left_out_at_a_level_is_left_out_whole(rows: list[MeasuredRow], level: str) -> None:
    seen = []
    for members, kept in groups_left_out(rows, level):
        names = {LEVELS[level](rows[index]) for index in members}
        assert len(names) == 1
        assert not names & {LEVELS[level](rows[index]) for index in kept}
        seen += members
    assert sorted(seen) == list(range(len(rows)))
