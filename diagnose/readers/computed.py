"""Facts that nobody says and that printed figures tell: the device by its peak and memory, sizes by rates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache

from conf.compose.load import cluster_named
from conf.errors import TrisweepError
from conf.folders import options
from conf.types.cluster_spec import DeviceSpec
from diagnose.readers.book import BookedStep
from diagnose.readers.said import Columns, number
from sweeps.table.clusters import clusters_by_device

GIBIBYTE, TERA = 2.0**30, 1e12
PEAK_WITHIN, MEMORY_WITHIN = 0.02, 0.025
"""How far a peak that two rounded figures make, and a capacity that a driver reports, may be from the device's."""
USUAL = ("A100-80GB-SXM", "H100-80GB-SXM", "B200-180GB", "MI300X-192GB")
"""Of devices that share a peak, such as the A800 and the A100, the ones that are common."""
LIKELY_SEQUENCES = tuple(2**power for power in range(7, 21))


def compute_device(columns: Columns, steps: Sequence[BookedStep]) -> None:
    """Put `gpu`, where nobody says it, by the peak that TFLOPS and MFU of the same step make, and by its memory."""
    if columns.count("num_gpus") is None:
        _count_ranks(columns)
    if columns.text("gpu") or columns.text("cluster"):
        return
    peak, capacity = _peak(columns, steps), _capacity(columns, steps)
    step = next((step for step in steps if "tflops" in step.found or "memory_share" in step.found), None)
    if peak is None and capacity is None:
        return
    found = [device for device in known_gpus() if _fits(device, peak, capacity)]
    said = [
        f"a peak of {peak / TERA:.0f} TFLOPS" if peak else "",
        f"{capacity / GIBIBYTE:.1f} GiB of memory" if capacity else "",
    ]
    note = " and ".join(filter(None, said))
    names = list(dict.fromkeys(device.name for device in found))
    if len(names) == 1 or (names and peak and _one_chip(found)):
        others = f"; {', '.join(names[1:])} have the same" if len(names) > 1 else ""
        columns.computed("gpu", names[0], step.at if step else None, note + others)


def _one_chip(found: Sequence[DeviceSpec]) -> bool:
    """True if the devices differ in memory alone, so that the usual one of them stands for all."""
    return len({device.peak_flops_per_second.get("bf16") for device in found}) == 1


def _peak(columns: Columns, steps: Sequence[BookedStep]) -> float | None:
    if (stated := columns.settings.fact("peak_flops")) is not None:
        return number(stated.value)
    ratios = [
        step.found["tflops"] / step.found["mfu"] for step in steps if step.found.get("mfu") and step.found.get("tflops")
    ]
    return statistics.median(ratios) * TERA if ratios else None


def _capacity(columns: Columns, steps: Sequence[BookedStep]) -> float | None:
    if (stated := columns.settings.fact("device_memory_gib")) is not None and (gib := number(stated.value)):
        return gib * GIBIBYTE
    shares = [
        step.found["memory"] / step.found["memory_share"]
        for step in steps
        if step.found.get("memory_share", 0) > 0.05 and "memory" in step.found
    ]
    return statistics.median(shares) if shares else None


def _fits(device: DeviceSpec, peak: float | None, capacity: float | None) -> bool:
    peaks = [device.peak_flops_per_second.get(kind) for kind in ("bf16", "fp16")]
    if peak is not None and not any(known and abs(peak / known - 1) < PEAK_WITHIN for known in peaks):
        return False
    return capacity is None or abs(capacity / device.memory_bytes - 1) < MEMORY_WITHIN


@cache
def known_gpus() -> tuple[DeviceSpec, ...]:
    """Every device that a cluster has, those that tables name first."""
    found: list[DeviceSpec] = []
    for cluster in dict.fromkeys([*(clusters[0] for clusters in clusters_by_device().values()), *options("cluster")]):
        try:
            device = cluster_named(cluster).device
        except TrisweepError:  # an own file that is wrong says so where it is chosen
            continue
        if device.kind == "gpu" and device.name not in {known.name for known in found}:
            found.append(device)
    return tuple(sorted(found, key=lambda device: device.name not in USUAL))


def _count_ranks(columns: Columns) -> None:
    """The devices by the ranks that lines name, where none is missing from 0 to the highest."""
    heard = columns.settings.fact("ranks_heard")
    if heard is not None:
        columns.computed("num_gpus", int(heard.value), heard.at, "as many ranks have printed lines")


def compute_sizes(columns: Columns, steps: Sequence[BookedStep]) -> None:
    """Put the batch or the sequence, where one of them is not known, by rate x time = batch x sequence."""
    _batch_of_steps(columns, steps)
    devices, batch, seq = (columns.count(name) for name in ("num_gpus", "global_batch", "seq"))
    of_step = [
        (tokens * step.found["seconds"], step)
        for step in steps
        if (tokens := _tokens(step, devices)) and step.found.get("seconds")
    ]
    if not of_step or (batch and seq):
        return
    middle = statistics.median(tokens for tokens, _ in of_step)
    at = min(of_step, key=lambda pair: abs(pair[0] - middle))[1].at
    if seq and not batch and _is_whole(middle / seq):
        columns.computed("global_batch", round(middle / seq), at, f"{middle:,.0f} tokens a step of {seq} each")
    elif batch and not seq:
        near = min(LIKELY_SEQUENCES, key=lambda each: abs(math.log(each * batch / middle)))
        value = near if abs(near * batch / middle - 1) < 0.02 else round(middle / batch)
        columns.computed("seq", value, at, f"{middle:,.0f} tokens a step of {batch} sequences")


def _batch_of_steps(columns: Columns, steps: Sequence[BookedStep]) -> None:
    """The batch, where nothing but the lines of steps says it, and all say the same; a ramp has no one batch."""
    batches = {step.found["batch"]: step for step in steps if step.found.get("batch")}
    if len(batches) == 1 and columns.count("global_batch") is None:
        (batch, step) = next(iter(batches.items()))
        columns.computed("global_batch", round(batch), step.at, "every line of a step says it")


def _tokens(step: BookedStep, devices: int | None) -> float | None:
    if "tokens" in step.found:
        return step.found["tokens"]
    return step.found["tokens_per_device"] * devices if devices and "tokens_per_device" in step.found else None


def _is_whole(value: float) -> bool:
    return value >= 0.9 and abs(value / round(value) - 1) < 0.02
