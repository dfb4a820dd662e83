"""The published rows, the report made of them, and the summary that `make bench` prints."""

from __future__ import annotations

import csv
import re
import runpy
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import benchmark_names
from benchmarks.levels import LevelResult
from benchmarks.published_rows import PUBLISHED, compared_rows, measured_rows, row_sets, sweep_of
from benchmarks.table_results import regret_of
from benchmarks.target import at_least, at_most, figure, within
from benchmarks.validate import PAGE, page
from benchmarks.validation import Validation, validation
from sweeps.table.prices import PricedRow

NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found(priced: dict[str, PricedRow], forward: list[LevelResult]) -> Validation:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.validation.published_rows", lambda: priced)
        patch.setattr("benchmarks.validation.forward_results", lambda: forward)
        return validation()


@pytest.fixture(scope="module")
def sets() -> dict[str, list[PricedRow]]:
    return row_sets()


def test_readme_tells_the_errors_of_the_page() -> None:
    page, readme = (" ".join(path.read_text().split()) for path in (PAGE, ROOT / "README.md"))
    after, left_out = re.findall(r"time is off by ([\d.]+) %.*?by ([\d.]+) %, in the mean over", page)[0]
    assert f"is off by {float(left_out):.0f} % in the mean" in readme
    assert f"on tables that came after the code it is off by {after} %" in readme


@pytest.mark.slow
def test_the_page_in_the_tree_is_what_the_model_says_today(found: Validation) -> None:
    """Words exactly, numbers to half a percent: the last digit may differ between machines."""
    kept, today = PAGE.read_text(), page(found)
    assert NUMBER.sub("#", kept) == NUMBER.sub("#", today), "run `make bench` and commit docs/validation.md"
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (kept, today)]
    assert numbers[0] == pytest.approx(numbers[1], rel=5e-3, abs=0.11), "run `make bench`"


@pytest.mark.slow
def test_what_is_left_out_was_written_by_the_model_of_today(found: Validation) -> None:
    """A cheap check of a fit that takes minutes: the predictions that it wrote beside what was left out still hold."""
    tested = [row for table in found.tables for row in table.rows]
    wrote = [row.without.predicted_s for row in tested]
    today = [row.row.compared.prediction.estimate.step_seconds for row in tested]
    assert wrote == pytest.approx(today, rel=0.01), "run `python -m benchmarks.fitting --write`"


@pytest.mark.slow
def test_the_page_says_in_its_first_line_that_it_is_generated() -> None:
    assert PAGE.read_text().splitlines()[0] == "<!-- Written by `python -m benchmarks.validate`; do not edit. -->"


@pytest.mark.slow
def test_every_measured_row_is_in_a_table_and_every_other_is_counted_with_its_reason(
    found: Validation, priced: dict[str, PricedRow]
) -> None:
    measured = measured_rows(priced)
    assert sum(len(table.rows) for table in found.tables) + found.num_new == len(measured)
    assert sum(found.unpriced.values()) == sum(row.prediction is None for row in priced.values())
    said = page(found)
    assert all(reason in said for reason in found.unpriced)
    assert all(f"| {table.name} |" in said for table in found.tables)


@pytest.mark.slow
def test_the_first_screen_says_how_far_predictions_are_off_and_where_not_to_rely_on_them(found: Validation) -> None:
    first, rest = page(found).split("## Who measured\n")
    said = ("A step's time is off by", "Do not rely on it", "Its interval of 80 %", "One measured step of your own")
    assert all(f"**{words}" in first for words in (*said, "Five runs of your own"))
    bullets = [line for line in first.splitlines() if line.startswith("- ")]
    assert bullets[0].startswith("- **Who measured decides"), "first of all"
    assert len(first.splitlines()) < 40
    assert all(len(line) <= 120 for line in first.splitlines())
    assert "| megatron-core |" in rest


@pytest.mark.slow
def test_recalled_rows_are_not_in_the_table_and_every_row_names_its_source() -> None:
    with PUBLISHED.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["confirmed"] for row in rows} == {"yes", "partial"}
    assert all(row["source"] and row["table"] and row["set"] for row in rows)


@pytest.mark.slow
def test_validation_sets_have_the_rows_of_their_sources(sets: dict[str, list[PricedRow]]) -> None:
    sizes = {name: len(rows) for name, rows in sets.items()}
    assert (sizes["sc21-table-1"], sizes["sc21-table-2"], sizes["bloom"], sizes["frontier-memory"]) == (10, 12, 81, 16)
    for name in ("sc21-table-1", "sc21-table-2", "bloom", "frontier-memory", "frontier-headline"):
        assert [row.reason for row in sets[name] if row.prediction is None] == []


@pytest.mark.slow
def test_measured_steps_are_those_of_the_source(sets: dict[str, list[PricedRow]]) -> None:
    """12,288 wide 145.6B at 148 TFLOPS per GPU: arXiv 2104.04473, table 1; BLOOM's seconds are printed as such."""
    (row,) = [one for one in compared_rows(sets["sc21-table-1"]) if one.row["model"] == "GPT-145.6B"]
    flops = 96 * 2304 * 2048 * 80 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (16 * 80 * 12288))
    assert row.step_seconds == pytest.approx(flops / 148e12 / 1536)
    assert compared_rows(sets["bloom"])[0].step_seconds == 189.06


@pytest.mark.slow
def test_rows_of_a_sweep_are_those_of_one_section_of_the_source(sets: dict[str, list[PricedRow]]) -> None:
    sweeps = {name: [sweep_of(one) for one in compared_rows(sets[name])] for name in ("bloom", "sc21-table-2")}
    assert sweeps["bloom"].count("GBS Variations") == 24
    assert set(sweeps["sc21-table-2"]) == {"Table 2"}


@pytest.mark.slow
def test_layers_that_were_worked_out_agree_with_the_published_rate(sets: dict[str, list[PricedRow]]) -> None:
    """The source's TFLOPS of that week are 8 x tokens x parameters / time, parameters = 12 L h^2 and a little."""
    worked_out = [one for one in compared_rows(sets["bloom"]) if one.row["hidden"] == "14400"]
    assert len(worked_out) == 20
    for one in worked_out:
        row = {name: float(one.row[name]) for name in ("tflops_per_gpu", "iter_time_s", "num_gpus", "global_batch")}
        flops = row["tflops_per_gpu"] * 1e12 * row["iter_time_s"] * row["num_gpus"]
        layers = flops / (8 * 2048 * row["global_batch"]) / (12 * 14400**2)
        assert layers == pytest.approx(float(one.row["layers"]), abs=0.05)


@pytest.mark.slow
def test_targets_say_whether_they_are_met_and_by_how_much_not() -> None:
    assert at_most("error", 3, 2.5, " %").verdict == "met"
    assert at_most("error", 3, 4.25, " %").verdict == "missed by 1.25 %"
    assert at_least("rank", 0.9, 0.85).verdict == "missed by 0.05"
    assert within("rate", 70, 3.5, 66.0).verdict == "missed by 0.50"
    assert within("rate", 70, 3.5, 73.0).verdict == "met"
    assert at_most("error", 3, None).verdict == "not computed"
    assert figure("error", 4.0).verdict == "no target"


@pytest.mark.slow
def test_every_promise_of_accuracy_is_among_the_targets(found: Validation) -> None:
    targets = {target.what.split(":")[0]: target.target for target in found.targets}
    assert targets["mean over tables, each left out"] == "<= 6 %"
    assert targets["tables below their one constant rate"] == f">= {len(found.tables)}"
    assert targets["sc21-table-1"] == "<= 3 %"
    assert targets["bloom"] == "<= 4.5 %"
    assert targets["Frontier 1T weak scaling (assumed batch)"] == "100 ± 3 %"
    assert targets["Frontier 22B"] == "73.5 ± 3.68"


def test_plans_that_are_predicted_alike_are_regretted_by_their_mean() -> None:
    assert regret_of([(9.58, 11.0), (9.7, 10.0), (10.0, 12.0)]) == pytest.approx(0.1)
    assert regret_of([(9.58, 11.0), (9.585, 10.0), (10.0, 12.0)]) == pytest.approx(0.05)


@pytest.mark.slow
def test_a_best_prediction_that_was_not_the_fastest_is_regretted(found: Validation) -> None:
    (bloom,) = [table for table in found.tables if table.name == "bloom"]
    assert bloom.regret is not None
    assert 0 <= bloom.regret < 0.5
    (alone,) = [table for table in found.tables if table.name == "frontier-headline"]
    assert alone.regret is None
    assert bloom.worst(1)[0].without.error in {row.without.error for row in bloom.rows}


@pytest.mark.slow
def test_make_bench_finds_every_module_with_a_main() -> None:
    assert "validate" in benchmark_names()
    assert "target" not in benchmark_names()


@pytest.mark.slow
def test_an_unknown_benchmark_lists_those_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "speed"])
    with pytest.raises(SystemExit, match=r"no benchmark speed\. Known: "):
        runpy.run_path(str(ROOT / "benchmarks" / "__main__.py"), run_name="__main__")
