"""Scores: what a row measured, how far predictions are from it, and what no model at all would score."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from conf.errors import ConfigError
from conf.units import GIBIBYTE
from results.analysis.score import (
    RowComparison,
    comparison,
    constant_error,
    score,
)
from results.tables.estimate_tables import score_in_all, score_table
from tests.messages import refused
from tests.results.analysis.test_measured import predicted, priced


def compared(**cells: str) -> RowComparison:
    found = comparison(priced(**cells))
    assert found is not None
    return found


def off_by(factor: float, **cells: str) -> RowComparison:
    """A row whose measured step is `factor` times the predicted one."""
    seconds = predicted(priced(**cells)).estimate.step_seconds
    return compared(iter_time_s=str(seconds * factor), **cells)


def test_a_row_without_measurements_is_not_compared() -> None:
    assert comparison(priced()) is None
    assert comparison(priced(layers="", iter_time_s="5")) is None


def test_a_measurement_that_is_no_number_names_its_column() -> None:
    with refused(ConfigError, "iter_time_s"):
        comparison(priced(iter_time_s="fast"))


@pytest.mark.parametrize(
    ("cells", "key"),
    [
        ({"iter_time_s": "0.0141"}, "iter_time_s"),
        ({"iter_time_s": "14100"}, "iter_time_s"),
        ({"tokens_per_s": "1.4e3"}, "tokens_per_s"),
        ({"tflops_per_gpu": "313"}, "tflops_per_gpu"),
        ({"mfu_pct": "0.44"}, "mfu_pct"),
        ({"hfu_pct": "150"}, "hfu_pct"),
        ({"memory_gib": "70000", "iter_time_s": "15"}, "memory_gib"),
    ],
)
def test_a_measurement_that_cannot_be_is_refused(cells: dict[str, str], key: str) -> None:
    with refused(ConfigError, key):
        comparison(priced(**cells))


def test_what_a_data_sheet_of_the_narrower_type_allows_is_no_impossible_rate() -> None:
    device = {"gpu": "H100-80GB-SXM", "recompute": "none", "tflops_per_gpu": "1000"}
    with refused(ConfigError, "tflops_per_gpu"):
        comparison(priced(**device))
    assert compared(**device, precision="fp8").step_seconds is not None


def test_memory_that_was_rounded_up_or_had_run_out_is_compared() -> None:
    assert compared(memory_gib="80").memory_error is not None
    assert compared(memory_gib="120", out_of_memory="yes").fits is False


def test_a_row_that_ran_out_of_memory_did_not_fit_and_has_no_time() -> None:
    ran_out = compared(out_of_memory="yes", tflops_per_gpu="100")
    assert (ran_out.fits, ran_out.step_seconds) == (False, None)
    assert compared(iter_time_s="5").fits is True


def test_allocated_memory_is_held_against_what_is_allocated() -> None:
    whole, allocated = compared(memory_gib="40"), compared(memory_gib="40", allocated_memory="yes")
    memory = predicted(priced())
    assert whole.predicted_memory_bytes == memory.memory_bytes
    assert allocated.predicted_memory_bytes == memory.allocated_bytes < memory.memory_bytes
    assert whole.memory_error == pytest.approx(memory.memory_bytes / (40 * GIBIBYTE) - 1)


def test_the_step_error_is_the_mean_of_absolute_errors_and_the_worst_row_is_named() -> None:
    rows = [off_by(1.0), off_by(1 / 1.1), off_by(1 / 0.8)]
    found = score(rows)
    assert found.num_steps == 3
    assert found.step_error == pytest.approx(0.1)
    assert found.worst is rows[2]
    assert rows[2].step_error == pytest.approx(-0.2)


def test_fits_are_right_where_prediction_and_row_agree() -> None:
    fitting, ran_out = compared(iter_time_s="5"), compared(out_of_memory="yes")
    too_large = compared(micro_batch="1024", num_gpus="8", out_of_memory="yes", recompute="none")
    found = score([fitting, ran_out, too_large])
    assert found.num_fits == 3
    assert found.fits_right == pytest.approx(2 / 3)


def test_nothing_measured_scores_nothing() -> None:
    found = score([])
    assert (found.step_error, found.worst, found.rank_correlation, found.constant_error) == (None, None, None, None)
    assert (found.memory_error, found.fits_right) == (None, None)


def test_the_constant_is_the_best_single_rate() -> None:
    assert constant_error([100.0, 100.0]) == 0.0
    assert constant_error([100.0, 110.0, 121.0]) == pytest.approx((abs(100 / 110 - 1) + 121 / 110 - 1) / 3)
    by_hand = min(sum(abs(rate / c - 1) for rate in (80, 90, 150)) / 3 for c in range(60, 200))
    assert constant_error([80.0, 90.0, 150.0]) == pytest.approx(by_hand)


def test_the_published_table_1_of_megatron_is_within_6_percent_of_a_constant() -> None:
    """The rates of arXiv 2104.04473, table 1."""
    assert constant_error([137, 138, 142, 135, 138, 140, 148, 155, 163, 163]) == pytest.approx(0.0585, abs=5e-4)


def test_the_table_scores_every_source_table_and_all_rows() -> None:
    rows = [off_by(1.0), off_by(1 / 1.1), off_by(2.0, table="Table 2")]
    console = Console(width=160, force_terminal=False)
    with console.capture() as captured:
        console.print(score_table(rows))
    lines = captured.get().splitlines()
    (first,) = [line for line in lines if "A paper, Table 1" in line]
    (second,) = [line for line in lines if "A paper, Table 2" in line]
    assert " 2 " in first
    assert " 5.0 " in first
    assert "+10.0 %: 256 8 1 8 1024" in first
    assert " 50.0 " in second
    assert any(line.strip().startswith("in all") and " 3 " in line for line in lines)


def test_one_table_needs_no_line_for_all() -> None:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(score_table([off_by(1.0)]))
    assert "in all" not in captured.get()


def test_memory_under_another_optimizer_is_not_held_against_adams() -> None:
    found = compared(iter_time_s="5", memory_gib="50.7", optimizer="adafactor")
    assert (found.memory_bytes, found.fits, found.step_seconds) == (None, None, 5)


def test_a_narrow_terminal_shows_the_errors_and_says_the_score_of_all_rows_last() -> None:
    name = "mosaicml/llm-foundry MPT benchmarks, scripts/train/benchmarking/README.md"
    rows = [off_by(1.1, source=name), off_by(0.9, source="B paper")]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(score_table(rows, width=80))
    shown = console.export_text()
    assert "worst row" not in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    words = {word for line in shown.splitlines() for word in line.split()}
    assert {"mosaicml/llm-foundry", "benchmarking/README.md,"} <= words
    assert score_in_all(rows).startswith("In all: steps are off by 10.1 % in the mean of 2 rows, ")
