"""Rates of the devices and their links, beside what the cluster's file says: the short form of a calibration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks.gpu_check.check import Check, CheckFinding
from benchmarks.gpu_check.machine import GENERIC
from benchmarks.gpu_check.workbench import CheckWorkbench
from conf.compose.load import settings_of
from conf.types.cluster_spec import ClusterSpec, LinkSpec
from conf.units import GIGA
from rates.plan import KIBIBYTE, rates_plan
from rates.record import DeviceRates, LinkTime, RatesFolder, RatesPlan
from results.render.units import significant, tflops

PART = "hardware"
SECONDS = {"gpu": 60.0, "cpu": 20.0}
MOST_SECONDS = 150.0


def hardware(bench: CheckWorkbench) -> Iterator[Check]:
    """One check, on all devices at once."""
    name = "matrix products, memory and collectives"
    yield Check(name, PART, bench.num_ranks, SECONDS[bench.kind], partial(_rates, bench))


def _rates(bench: CheckWorkbench, devices: tuple[int, ...]) -> CheckFinding:
    cluster = settings_of(bench.tree).cluster
    folder = RatesFolder(bench.folder / "rates")
    folder.prepare(short_plan(bench, cluster))
    said = bench.measure_rates(folder, MOST_SECONDS)
    rates = folder.read_rates()
    if rates is None:
        failures = folder.read_failures()
        return CheckFinding(passed=False, seen=failures[0].cause if failures else said, figures={"said": said})
    rows = rows_of(rates, cluster)
    figures = {"rows": rows, "rates": rates.model_dump(mode="json", exclude={"hostnames": True, "environment": True})}
    # The first row is of products, the last one of the most devices, or of a small kernel where there is one device.
    seen = "; ".join(f"{row['what']}: {row['measured']}" for row in (rows[0], rows[-1]))
    return CheckFinding(passed=True, seen=seen, figures=figures)


def short_plan(bench: CheckWorkbench, cluster: ClusterSpec) -> RatesPlan:
    """A short calibration: one product, one attention, and the smallest and the largest message."""
    whole = rates_plan(cluster, bench.kind, bench.num_devices)
    return whole.model_copy(
        update={
            "dtypes": (bench.narrow if bench.kind == "gpu" else "fp32",),
            "large_products": whole.large_products[:1],
            "thin_products": (),
            "attention_shapes": whole.attention_shapes[-1:],
            "message_bytes": (whole.message_bytes[0], whole.message_bytes[-1]),
            "num_samples": 3,
        }
    )


def rows_of(rates: DeviceRates, cluster: ClusterSpec) -> list[dict[str, Any]]:
    """The measured value and the configuration's, in words; the latter is empty where it says nothing."""
    (product,), (attention,), device = rates.products, rates.attentions, cluster.device
    stated = f"{tflops(device.peak_flops_per_second[product.dtype])} TFLOPS"
    copied, size = rates.copy_bytes_per_second.median, product.product
    rows = [
        _row(
            f"{product.dtype} product, {size.rows} x {size.columns} x {size.depth}",
            f"{tflops(product.flops_per_second.median)} TFLOPS",
            stated,
        ),
        _row(f"{attention.dtype} attention", f"{tflops(attention.flops_per_second.median)} TFLOPS", ""),
        _row("copy in memory", _giga(copied), _giga(device.memory_bandwidth_bytes_per_second)),
        _row("small kernel", _micro(rates.kernel_seconds.median), _micro(cluster.efficiency.kernel_seconds)),
        *(row for link in cluster.links for row in _link_rows(link, rates.link_times)),
    ]
    return [row | {"stated": ""} for row in rows] if cluster.name == GENERIC else rows


def _link_rows(link: LinkSpec, times: Sequence[LinkTime]) -> Iterator[dict[str, Any]]:
    chosen = [time for time in times if (time.link, time.pattern) == (link.name, "all_reduce")]
    stated = f"{_giga(link.bandwidth_bytes_per_second)}, {_micro(link.latency_seconds)} a hop"
    for num_ranks in sorted({time.num_ranks for time in chosen}):
        of_size = (time for time in chosen if time.num_ranks == num_ranks)
        small, large = sorted(of_size, key=lambda time: time.num_bytes)
        latency = f"{_micro(small.seconds.median)} for {small.num_bytes / KIBIBYTE:g} KiB"
        yield _row(
            f"all-reduce over {num_ranks}, {link.name}", f"{_giga(ring_bytes_per_second(large))}; {latency}", stated
        )


def ring_bytes_per_second(time: LinkTime) -> float:
    """The rate of one link in a ring: each rank sends 2 (n-1)/n of an all-reduce's bytes (NCCL's bus bandwidth)."""
    return 2 * (time.num_ranks - 1) / time.num_ranks * time.num_bytes / time.seconds.median


def _row(what: str, measured: str, stated: str) -> dict[str, Any]:
    return {"what": what, "measured": measured, "stated": stated}


def _giga(bytes_per_second: float) -> str:
    return f"{significant(bytes_per_second / GIGA)} GB/s"


def _micro(seconds: float) -> str:
    return f"{significant(seconds * 1e6)} us"
