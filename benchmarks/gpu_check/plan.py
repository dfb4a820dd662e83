"""The order of all checks: what tells most about a machine comes first, should time run out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.gpu_check import faults, hardware, layouts, one_device, repeats, speed
from benchmarks.gpu_check.check import Check
from benchmarks.gpu_check.workbench import CheckWorkbench

PARTS = (layouts.PART, faults.PART, hardware.PART, speed.PART)


def rounds(bench: CheckWorkbench, parts: Sequence[str]) -> Iterator[list[Check]]:
    """Checks of one round run beside each other; a round begins when the one before has ended."""
    known: layouts.References = {}
    if layouts.PART in parts:
        yield list(one_device.references(bench, known))
    second = list(one_device.variants(bench, known)) if layouts.PART in parts else []
    second += [*repeats.repeats(bench), *layouts.layouts(bench, known, 2)] if layouts.PART in parts else []
    yield [*second, *(faults.faults(bench) if faults.PART in parts else [])]
    if hardware.PART in parts:
        yield list(hardware.hardware(bench))
    if speed.PART in parts:
        yield list(speed.speeds(bench))
    if layouts.PART in parts:
        compared = one_device.comparisons_with_cpu(bench)
        yield [*compared, *one_device.compiled_layers(bench, known), *layouts.layouts(bench, known, 4)]
        yield list(layouts.layouts(bench, known, 8))
