"""The short calibration measures what its table needs, and the table keeps measured and stated apart."""

from __future__ import annotations

import pytest

from benchmarks.gpu_check.hardware import ring_bytes_per_second, rows_of, short_plan
from conf.compose.load import settings_of
from rates.record import AttentionRate, DeviceRates, LinkTime, MeasuredSpread, ProductRate, RatesPlan
from tests.benchmarks.gpu_check.conftest import H200, GpuBench
from train_core.trial.measurement import Environment

HERE = Environment(
    hostname="node-1",
    device="NVIDIA H200",
    backend="nccl",
    torch_version="2.13.0",
    python_version="3.11.7",
    git_sha="unknown",
    num_cores=16,
)


def spread(value: float) -> MeasuredSpread:
    return MeasuredSpread(median=value, lowest=value, highest=value)


def link_time(num_bytes: int, seconds: float) -> LinkTime:
    return LinkTime(link="nvlink", pattern="all_reduce", num_ranks=8, num_bytes=num_bytes, seconds=spread(seconds))


def rates_of(plan: RatesPlan) -> DeviceRates:
    return DeviceRates(
        plan=plan,
        products=(
            ProductRate(dtype="bf16", product=plan.large_products[0], is_large=True, flops_per_second=spread(7.12e14)),
        ),
        attentions=(AttentionRate(dtype="bf16", shape=plan.attention_shapes[0], flops_per_second=spread(4e14)),),
        copy_bytes_per_second=spread(4e12),
        triad_bytes_per_second=spread(4e12),
        kernel_seconds=spread(4e-6),
        link_times=(link_time(2**28, 2**28 / 2e11), link_time(2**12, 3e-5)),
        environment=HERE,
        hostnames=("node-1",),
        cores_per_host=16,
        finished=0.0,
    )


@pytest.mark.slow
def test_the_short_plan_measures_one_product_and_two_messages_over_every_group(bench_of: GpuBench) -> None:
    bench = bench_of(H200, 8)
    plan = short_plan(bench, settings_of(bench.tree).cluster)
    assert (len(plan.large_products), len(plan.thin_products), len(plan.message_bytes)) == (1, 0, 2)
    assert [link.group_sizes for link in plan.links] == [(2, 4, 8)]
    assert plan.dtypes == ("bf16",)


@pytest.mark.slow
def test_the_table_says_what_was_measured_beside_what_the_configuration_says(bench_of: GpuBench) -> None:
    bench = bench_of(H200, 8)
    cluster = settings_of(bench.tree).cluster
    listed = rows_of(rates_of(short_plan(bench, cluster)), cluster)
    rows = {row["what"]: (row["measured"], row["stated"]) for row in listed}
    assert rows["bf16 product, 8192 x 8192 x 8192"] == ("712 TFLOPS", "989 TFLOPS")
    assert rows["copy in memory"] == ("4,000 GB/s", "4,800 GB/s")
    assert rows["all-reduce over 8, nvlink"] == ("350 GB/s; 30.0 us for 4 KiB", "450 GB/s, 5.00 us a hop")


def test_the_rate_of_an_all_reduce_is_that_of_a_link_in_a_ring() -> None:
    assert ring_bytes_per_second(link_time(2**20, 1.0)) == 2 * 7 / 8 * 2**20
