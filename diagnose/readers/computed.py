"""Facts that nobody says and that printed figures tell: the device by its peak and memory, sizes by rates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from conf.folders import options, path_of
from conf.yaml_text import file_text, yaml_content
from diagnose.readers.book import BookedStep
from diagnose.readers.said import Columns, number

GIBIBYTE, TERA = 2.0**30, 1e12
PEAK_WITHIN, MEMORY_WITHIN = 0.02, 0.025
BATCH_WITHIN = 0.01
"""How far a peak that two rounded figures make, and a capacity that a driver reports, may be from the device's."""
USUAL = ("A100-80GB-SXM", "H100-80GB-SXM", "B200-180GB", "MI300X-192GB")
"""Of devices that share a peak, such as the A800 and the A100, the ones that are common."""
LIKELY_SEQUENCES = tuple(2**power for power in range(7, 21))


class KnownDevice(NamedTuple):
    """A device of group device: FLOPs a second in 16 bits, dense, and bytes."""

    name: str
    peak: float
    memory_bytes: float


def compute_device(columns: Columns, steps: Sequence[BookedStep]) -> None:
    """Put `gpu`, where nobody says it, by the peak that TFLOPS and MFU of the same step make, and by its memory."""
    if columns.count("num_gpus") is None:
        _count_ranks(columns, steps)
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


def _one_chip(found: Sequence[KnownDevice]) -> bool:
    """True if the devices differ in memory alone, so that the usual one of them stands for all."""
    return len({device.peak for device in found}) == 1


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


def _fits(device: KnownDevice, peak: float | None, capacity: float | None) -> bool:
    if peak is not None and abs(peak / device.peak - 1) > PEAK_WITHIN:
        return False
    return capacity is None or abs(capacity / device.memory_bytes - 1) < MEMORY_WITHIN


@cache
def known_gpus() -> tuple[KnownDevice, ...]:
    """Every GPU of group device, the usual ones first."""
    found = []
    for name in options("device"):
        path = path_of("device", name)
        content = yaml_content(file_text(path), path, "device") if path else None
        if isinstance(content, dict) and content.get("kind") == "gpu" and "defaults" not in content:
            peaks = content["peak_flops_per_second"]
            peak = float(peaks.get("bf16") or peaks["fp16"])
            found.append(KnownDevice(str(content["name"]), peak, float(content["memory_bytes"])))
    return tuple(sorted(found, key=lambda device: device.name not in USUAL))


def _count_ranks(columns: Columns, steps: Sequence[BookedStep]) -> None:
    """The devices by the ranks that lines name, where none is missing from 0 to the highest, else by two rates."""
    heard = columns.settings.fact("ranks_heard")
    if heard is not None:
        columns.computed("num_gpus", int(heard.value), heard.at, "as many ranks have printed lines")
    both = (step for step in steps if step.found.get("tokens") and step.found.get("tokens_per_device"))
    for step in both:
        ratio = step.found["tokens"] / step.found["tokens_per_device"]
        if _is_whole(ratio):
            columns.computed("num_gpus", round(ratio), step.at, "tokens a second of all over those of one device")
            return


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
    if columns.count("global_batch") is not None:
        return
    printed = {step.found["batch"]: step for step in steps if step.found.get("batch")}
    for batches, note in (
        (printed, "every line of a step says it"),
        (_by_samples(steps), "samples consumed from one line to the next"),
        (_by_rate(steps), "samples a second times the seconds of a step"),
    ):
        if len(batches) == 1:
            ((batch, step),) = batches.items()
            columns.computed("global_batch", round(batch), step.at, note)
        if batches:
            return


def _by_rate(steps: Sequence[BookedStep]) -> dict[float, BookedStep]:
    """The batch that samples a second make with the time of a step: a multiple of 8, else a whole number near it."""
    rates = [
        (step.found["samples"] * time, step) for step in steps if "samples" in step.found and (time := _time(step))
    ]
    middle = statistics.median(rate for rate, _ in rates) if rates else 0.0
    near = (each * round(middle / each) for each in (8, 1))
    batch = next((each for each in near if each and abs(each / middle - 1) < BATCH_WITHIN), None)
    return {} if batch is None else {batch: rates[-1][1]}


def _time(step: BookedStep) -> float | None:
    per_second = step.found.get("batches")
    return step.found.get("seconds", 1 / per_second if per_second else None)


def _by_samples(steps: Sequence[BookedStep]) -> dict[float, BookedStep]:
    """The batches that samples make which lines say are consumed since the first step, from one line to the next."""
    return {
        (step.found["consumed"] - before.found["consumed"]) / (step.number - before.number): step
        for before, step in pairwise(steps)
        if step.found.get("consumed", 0) > before.found.get("consumed", 0) > 0
    }


def _tokens(step: BookedStep, devices: int | None) -> float | None:
    if "tokens" in step.found:
        return step.found["tokens"]
    return step.found["tokens_per_device"] * devices if devices and "tokens_per_device" in step.found else None


def _is_whole(value: float) -> bool:
    return value >= 0.9 and abs(value / round(value) - 1) < 0.02
