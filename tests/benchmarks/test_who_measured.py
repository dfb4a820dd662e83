"""Users, makers and papers apart: what is learned of each, and that nothing is tested on what it was learned from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import yaml

from benchmarks.left_out import read_rows
from benchmarks.practices import group_of, learn, left_out_levels, log_taken, table_of_group, who_measured
from benchmarks.published_rows import MeasuredRow
from benchmarks.who_measured import OWN_ROWS, OwnRows, forward_rows_of_all, who_targets
from conf.own_files import at_hand
from sweeps.confidence import width_of
from sweeps.practice import PRACTICES


@pytest.fixture(scope="module")
def rows() -> Sequence[MeasuredRow]:
    return forward_rows_of_all()


@pytest.mark.slow
def test_the_levels_in_the_tree_are_what_the_rows_say_today(rows: Sequence[MeasuredRow]) -> None:
    kept = yaml.safe_load(at_hand("sweeps/practices.yaml").read_text())
    for who, practice in PRACTICES.items():
        today = learn([row for row in rows if who_measured(row) == who]).model_dump()
        assert today == pytest.approx(kept[practice], abs=0.01), "run `python -m benchmarks.who_measured`"


@pytest.mark.slow
def test_four_rows_of_five_lie_within_what_is_learned_from_them(rows: Sequence[MeasuredRow]) -> None:
    for who in PRACTICES:
        own = [row for row in rows if who_measured(row) == who]
        level, tables = learn(own), [table_of_group(row) for row in own]
        weights = np.array([1 / tables.count(table) for table in tables])
        ends = [(level.low * width_of(row.run.setup), level.high * width_of(row.run.setup)) for row in own]
        inside = np.array([low <= log_taken(row) <= high for row, (low, high) in zip(own, ends, strict=True)])
        assert 0.79 < (inside * weights).sum() / weights.sum() < 0.88


@pytest.mark.slow
def test_what_is_said_of_a_group_of_sources_was_learned_without_it(rows: Sequence[MeasuredRow]) -> None:
    before = left_out_levels(rows)
    slower = [
        MeasuredRow(
            row.place, row.table, row.series, row.compared, row.seconds * (3 if group_of(row) == "dlperf" else 1)
        )
        for row in rows
    ]
    for row, was, now in zip(rows, before, left_out_levels(slower), strict=True):
        same = group_of(row) == "dlperf" or who_measured(row) != "users"
        assert (was == now) == same


def test_rows_of_ones_own_keep_what_was_promised_of_users_but_for_one_table() -> None:
    own = read_rows(OWN_ROWS, OwnRows)
    one, five, worse = who_targets((), own)
    assert (one.met, five.met) == (True, True)
    assert worse.seen.startswith("1 (swiss-ai")
