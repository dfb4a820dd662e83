"""One device: the trainings with which all others are compared, and the same ones in other ways."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.gpu_check.agreement import figures_of, finding_on_steps
from benchmarks.gpu_check.check import Check, CheckFinding
from benchmarks.gpu_check.layouts import PART, Kind, References, as_reference, kinds
from benchmarks.gpu_check.scale import FAMILIES
from benchmarks.gpu_check.workbench import CheckWorkbench
from conf.types.schema import Value

WHOLE: dict[str, Value] = {"batch.micro_batch_size": 8}
WAYS: dict[str, dict[str, Value]] = {
    "micro-batches of 2": {"batch.micro_batch_size": 2},
    "recompute selective": {**WHOLE, "parallel.recompute": "selective"},
    "recompute full": {**WHOLE, "parallel.recompute": "full"},
    "recompute pointwise": {**WHOLE, "parallel.recompute": "pointwise"},
}
"""Other ways in which one device can train, which must not change what it computes."""

COMPILE_SECONDS = 90.0
"""Nobody has compiled layers for a GPU yet; this is what others report for models of that size."""


def references(bench: CheckWorkbench, known: References) -> Iterator[Check]:
    """The trainings on one device, whose steps become known."""
    for family in FAMILIES:
        for dtype in ("fp32", bench.narrow):
            run = partial(_reference, bench, known, (family, dtype))
            yield Check(f"one device, {family} {dtype}", PART, 1, bench.scale.start_seconds, run)


def _reference(bench: CheckWorkbench, known: References, kind: Kind, devices: tuple[int, ...]) -> CheckFinding:
    ran = bench.run(f"one-{'-'.join(kind)}", bench.small(*kind, WHOLE), devices)
    if not ran.completed:
        return CheckFinding(passed=False, seen=ran.why, figures=figures_of(ran))
    known[kind] = ran.steps
    first, last = ran.steps[0].loss, ran.steps[-1].loss
    return CheckFinding(passed=last < first, seen=f"loss {first:.4f} to {last:.4f}", figures=figures_of(ran))


def variants(bench: CheckWorkbench, known: References) -> Iterator[Check]:
    """One device once more, in other ways."""
    start = bench.scale.start_seconds
    for (name, values), kind in zip(WAYS.items(), kinds(bench), strict=False):
        run = partial(as_reference, bench, known, kind, values, name)
        yield Check(f"{name}, {' '.join(kind)}", PART, 1, start, run)
    yield Check("as on the host's CPU, GPT fp32", PART, 1, 3 * start, partial(_as_on_cpu, bench))


def compiled_layers(bench: CheckWorkbench, known: References) -> Iterator[Check]:
    """Compiled layers, which take the longest. Building C++ for CPUs would take minutes, and say nothing of a GPU."""
    if bench.kind == "gpu":
        kind: Kind = ("Llama", bench.narrow)
        run = partial(as_reference, bench, known, kind, {**WHOLE, "training.compile_layers": True}, "compiled")
        yield Check(f"compiled layers, {' '.join(kind)}", PART, 1, COMPILE_SECONDS, run)


def _as_on_cpu(bench: CheckWorkbench, devices: tuple[int, ...]) -> CheckFinding:
    """The device against the cores of its host: both go on from a checkpoint, because they draw other first weights."""
    values: dict[str, Value] = {"batch.global_batch_size": 4, "batch.micro_batch_size": 4}
    saving: dict[str, Value] = {"training.num_steps": 2, "checkpoint.every_steps": 2}
    first = bench.run("cpu-saved", bench.small("GPT", "fp32", {**values, **saving}, on_cpu=True), ())
    values["checkpoint.load"] = str(bench.trial("cpu-saved").checkpoints.absolute())
    expected = bench.run("cpu-loaded", bench.small("GPT", "fp32", values, on_cpu=True), ())
    ran = bench.run("cpu-compared", bench.small("GPT", "fp32", values), devices)
    for job in (first, expected, ran):
        if not job.completed:
            return CheckFinding(passed=False, seen=job.why, figures=figures_of(job))
    return finding_on_steps(ran, expected.steps, "fp32")
