"""What rows measured: times of steps from rates that sources count in several ways, and memory by its definition."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError
from results.analysis.score import (
    counts_half_of_attention,
    counts_model_flops,
    is_allocated,
    measured_step_seconds,
    ran_out_of_memory,
)
from sweeps.table.prices import PricedRow, Record, RowPrediction, price
from tests.messages import refused

CELLS = {
    "source": "A paper",
    "table": "Table 1",
    "layers": "40",
    "hidden": "6144",
    "heads": "48",
    "seq": "2048",
    "gpu": "A100-80GB-SXM",
    "num_gpus": "256",
    "tp": "8",
    "pp": "1",
    "micro_batch": "8",
    "global_batch": "1024",
    "recompute": "full",
}


def priced(**cells: str) -> PricedRow:
    row = {**CELLS, **cells}
    (found,) = price([Record(tuple(row), tuple(row.values()))])
    return found


def predicted(row: PricedRow) -> RowPrediction:
    assert row.prediction is not None, row.reason
    return row.prediction


def seconds_of(**cells: str) -> float | None:
    row = priced(**cells)
    return measured_step_seconds(row.record.row, predicted(row))


def test_a_stated_time_goes_before_every_rate() -> None:
    assert seconds_of(iter_time_s="9.5", tflops_per_gpu="1", hfu_pct="1", tokens_per_s="1") == 9.5


def test_rates_count_hardware_flops_unless_the_row_says_otherwise() -> None:
    """Published: 135 TFLOPS at 1,024 sequences of 2,048 tokens; the formula is arXiv 2104.04473, equation 3."""
    flops = 96 * 1024 * 2048 * 40 * 6144**2 * (1 + 2048 / (6 * 6144) + 51200 / (16 * 40 * 6144))
    assert seconds_of(tflops_per_gpu="135") == pytest.approx(flops / 256 / 135e12)


def test_rates_count_model_flops_where_the_row_says_so() -> None:
    flops = 72 * 1024 * 2048 * 40 * 6144**2 * (1 + 2048 / (6 * 6144) + 51200 / (12 * 40 * 6144))
    assert seconds_of(tflops_per_gpu="135", tflops_count="model") == pytest.approx(flops / 256 / 135e12)


@pytest.mark.parametrize(
    ("cells", "counts"),
    [
        ({"tflops_count": "hardware", "mfu_pct": "40"}, False),
        ({"tflops_count": "model"}, True),
        ({"mfu_pct": "40"}, True),
        ({"hfu_pct": "44"}, False),
        ({"mfu_pct": "33", "hfu_pct": "44", "tflops_per_gpu": "137"}, False),
        ({"mfu_pct": "44", "hfu_pct": "58", "tflops_per_gpu": "137"}, True),
        ({}, False),
    ],
)
def test_what_a_rate_counts_is_read_from_the_row(cells: dict[str, str], counts: bool) -> None:
    assert counts_model_flops({**CELLS, **cells}, peak_flops_per_second=312e12) is counts


def test_utilizations_and_token_rates_are_rates_too() -> None:
    tokens = 1024 * 2048
    assert seconds_of(hfu_pct="50") == pytest.approx(seconds_of(tflops_per_gpu="156"))
    assert seconds_of(mfu_pct="50") == pytest.approx(seconds_of(tflops_per_gpu="156", tflops_count="model"))
    assert seconds_of(tokens_per_s=str(tokens / 4)) == pytest.approx(4)


def test_a_rate_in_tokens_goes_before_one_in_flops() -> None:
    assert seconds_of(tokens_per_s=str(1024 * 2048), tflops_per_gpu="1") == pytest.approx(1)


@pytest.mark.parametrize(
    ("cells", "halves"),
    [
        ({"causal_half": "yes"}, True),
        ({"causal_half": "no", "implementation": "megatron-core"}, False),
        ({"implementation": "megatron-core"}, True),
        ({"implementation": "megatron-core", "flash_attention": "no"}, False),
        ({}, False),
    ],
)
def test_rates_of_todays_megatron_count_half_of_attention(cells: dict[str, str], halves: bool) -> None:
    assert counts_half_of_attention({**CELLS, **cells}, predicted(priced(iter_time_s="1", **cells))) is halves


def test_a_rate_and_a_time_that_jupiter_prints_for_one_run_agree() -> None:
    """Source: oellm-autoexp, speed_scaling/RESULTS.md, 512 nodes: 417.9 model TFLOPS and 4.083 s."""
    row = {
        "gpu": "GH200-96GB",
        "layers": "64",
        "hidden": "5120",
        "heads": "64",
        "ffn_hidden": "25600",
        "vocab": "262144",
        "seq": "4096",
        "kv_heads": "8",
        "head_dim": "128",
        "gated_mlp": "yes",
        "tied_embeddings": "no",
        "num_gpus": "2048",
        "tp": "4",
        "pp": "4",
        "vpp": "2",
        "micro_batch": "2",
        "global_batch": "4096",
        "recompute": "none",
        "flash_attention": "yes",
        "implementation": "megatron-core",
        "tflops_count": "model",
    }
    assert seconds_of(**row, tflops_per_gpu="417.9") == pytest.approx(4.083, rel=2e-3)


def test_memory_is_all_of_the_devices_unless_the_row_says_that_it_was_allocated() -> None:
    assert is_allocated({"allocated_memory": "yes"})
    assert not is_allocated({"notes": "torch max allocated"})


def test_running_out_of_memory_is_a_column() -> None:
    assert ran_out_of_memory({"out_of_memory": "yes"})
    assert not ran_out_of_memory({"notes": "OOM at micro batch 2; micro batch 1 ran"})


def test_what_a_rate_counts_has_two_words() -> None:
    with refused(ConfigError, "tflops_count"):
        counts_model_flops({**CELLS, "tflops_count": "all"}, peak_flops_per_second=312e12)
