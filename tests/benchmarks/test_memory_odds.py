"""What is learned of predicted memory from published runs."""

from __future__ import annotations

from math import exp, log

import pytest

from benchmarks.memory_odds import MemoryRow, learned, memory_rows, own_rows
from benchmarks.published_rows import PUBLISHED
from sweeps.memory_odds import load_learned


def rows(table: str, trainer: str, devices: int, *ratios: float) -> list[MemoryRow]:
    return [MemoryRow(table, trainer, devices, log(ratio)) for ratio in ratios]


def test_a_trainer_with_many_tables_has_its_own_mean_and_another_that_of_all() -> None:
    known = learned(
        [
            *(row for table in "abcdefgh" for row in rows(table, "fsdp", 8, 1.19, 1.21)),
            *(row for table in "ijklmnop" for row in rows(table, "torchtitan", 8, 0.99, 1.01)),
        ]
    )
    assert known.means["fsdp"] == pytest.approx(log(1.2), abs=0.02)
    assert known.means["torchtitan"] == pytest.approx(0.0, abs=0.02)
    assert exp(known.other_mean) == pytest.approx(1.1, abs=0.02)
    assert known.other_spread > known.spreads["fsdp"]


def test_what_grows_with_the_devices_is_told_from_what_a_trainer_needs() -> None:
    sizes = {"a": 8, "b": 16, "c": 64, "d": 256, "e": 1024}
    grown = [row for table, size in sizes.items() for row in rows(table, "fsdp", size, size**0.02, 1.01 * size**0.02)]
    assert learned(grown).doubling == pytest.approx(log(2) * 0.02, abs=0.004)


def test_runs_of_which_a_part_was_assumed_are_told_from_those_that_are_whole() -> None:
    found = memory_rows([PUBLISHED.with_name("published_3.csv")])
    whole = {row.table.split()[0] for row in found if row.is_whole}
    assumed = {row.table.split()[0] for row in found if not row.is_whole}
    assert (whole, assumed) == ({"SimuMax"}, {"JUPITER"})


def test_the_file_holds_what_is_learned_today() -> None:
    kept, found = load_learned(), learned([*memory_rows(), *own_rows()])
    assert found.means == pytest.approx(kept.means, abs=0.01)
    assert found.spreads == pytest.approx(kept.spreads, abs=0.01)
    assert found.doubling == pytest.approx(kept.doubling, abs=0.002)
