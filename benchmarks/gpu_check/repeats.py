"""The same training twice, with deterministic kernels: the same bits, on one device and on two."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.gpu_check.agreement import EXACT, finding_on_bits
from benchmarks.gpu_check.check import Check, CheckFinding
from benchmarks.gpu_check.layouts import PART, CheckLayout
from benchmarks.gpu_check.workbench import CheckWorkbench

LAYOUTS = (CheckLayout(), CheckLayout(tensor=2, sequence_parallel=True), CheckLayout(data=2, zero_stage=2))


def repeats(bench: CheckWorkbench) -> Iterator[Check]:
    """One check for every layout that there are ranks for."""
    for layout in LAYOUTS:
        if layout.num_ranks <= bench.num_ranks:
            name = f"twice, deterministic, {str(layout) or 'one device'}, GPT {bench.narrow}"
            run = partial(_repeat, bench, layout, name)
            yield Check(name, PART, layout.num_ranks, 2 * bench.scale.start_seconds, run)


def _repeat(bench: CheckWorkbench, layout: CheckLayout, name: str, devices: tuple[int, ...]) -> CheckFinding:
    experiment = bench.small("GPT", bench.narrow, {**layout.values(), **EXACT})
    first, again = (
        bench.run(f"{name}, {turn}".replace(" ", "-").replace(",", ""), experiment, devices) for turn in (1, 2)
    )
    return finding_on_bits(again, first)
