"""Columns that nothing reads are named, and rows that say something in them under another name are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.errors import ConfigError
from sweeps.table.columns import (
    DEVICE_COLUMNS,
    NAMED_OTHERWISE,
    OPTIONAL_COLUMNS,
    REQUIRED_COLUMNS,
    require_read,
)
from sweeps.table.prices import unread_sentence
from tests.messages import refused

KNOWN = (*REQUIRED_COLUMNS, *DEVICE_COLUMNS)


@pytest.mark.parametrize(
    ("column", "named"),
    [
        ("precison", "precison (did you mean precision?)"),
        ("Recompute", "Recompute (did you mean recompute?)"),
        ("kv_head", "kv_head (did you mean kv_heads?)"),
        ("zero", "zero (did you mean zero_stage?)"),
        ("framework", "framework (did you mean implementation?)"),
        ("iter_time_ms", "iter_time_ms (did you mean iter_time_s?)"),
        ("Step Time (s)", "Step Time (s) (did you mean iter_time_s?)"),
        ("TFLOPS per GPU", "TFLOPS per GPU (did you mean tflops_per_gpu?)"),
        ("CPU_Offload", "CPU_Offload (did you mean cpu_offload?)"),
        ("nodes", "nodes"),
        ("params_b", "params_b"),
        ("notes", "notes"),
    ],
)
def test_a_column_that_nothing_reads_is_named_with_the_one_that_may_be_meant(column: str, named: str) -> None:
    assert unread_sentence([*KNOWN, "source", "confirmed", column]) == f"Columns that were not read: {named}."


def test_columns_that_are_read_are_not_named_and_those_that_are_there_are_not_meant() -> None:
    assert unread_sentence([*KNOWN, *OPTIONAL_COLUMNS, "arxiv", "iter_time_s", ""]) is None
    assert unread_sentence([*KNOWN, "recompute", "Recompute"]) == "Columns that were not read: Recompute."


def test_many_columns_are_one_short_line_that_begins_with_what_may_be_meant() -> None:
    sentence = unread_sentence([*KNOWN, *(f"free_{number}" for number in range(30)), "notes", "dtype"])
    assert sentence is not None
    assert sentence.startswith("Columns that were not read: dtype (did you mean precision?), notes, free_0, ")
    assert sentence.endswith("free_3 and 26 more.")


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("zero", "1"),
        ("zero_optimization", "1"),
        ("dtype", "fp8"),
        ("recomputation", "full"),
        ("gradient_checkpointing", "1"),
        ("vp", "4"),
        ("n_kv_heads", "8"),
        ("num_kv_heads", "1"),
        ("seq_parallel", "yes"),
        ("vocab_size", "32000"),
    ],
)
def test_a_row_that_says_something_under_another_name_gets_a_reason(column: str, cell: str) -> None:
    with refused(ConfigError, column):
        require_read({column: cell})
    require_read({column: cell, NAMED_OTHERWISE[column]: cell})


@pytest.mark.parametrize(("column", "cell"), [("vp", "1"), ("experts", "1.0"), ("zero", "0"), ("seq_parallel", "no")])
def test_a_cell_that_says_what_an_empty_one_means_costs_no_prediction(column: str, cell: str) -> None:
    require_read({column: cell})


@pytest.mark.parametrize("column", OPTIONAL_COLUMNS)
def test_every_column_is_documented(column: str) -> None:
    page = Path("docs/estimate.md").read_text()
    tables = [line.split("|")[1] for line in page.splitlines() if line.startswith("|")]
    assert any(f"`{column}`" in names for names in tables)
