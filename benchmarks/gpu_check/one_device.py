"""One device: the trainings with which all others are compared, and the same ones in other ways."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from benchmarks.gpu_check.agreement import figures_of, finding_on_steps, finding_on_unfinished
from benchmarks.gpu_check.check import Check, CheckFinding
from benchmarks.gpu_check.layouts import PART, Kind, References, as_reference, kinds
from benchmarks.gpu_check.scale import FAMILIES
from benchmarks.gpu_check.workbench import CheckWorkbench
from conf.types.recompute import RECOMPUTES
from conf.types.schema import Dtype, Value

ALONE = ("GPT", "Llama")
"""Families that a rank without others trains; the other ones are compared on several ranks, and with the CPU."""

WHOLE: dict[str, Value] = {"batch.micro_batch_size": 8}
WAYS: dict[str, dict[str, Value]] = {
    "micro-batches of 2": {"batch.micro_batch_size": 2},
    **{f"recompute {name}": {**WHOLE, "parallel.recompute": name} for name in RECOMPUTES if name != "none"},
}
"""Other ways in which one device can train, which must not change what it computes."""


class AgainstCpu(NamedTuple):
    """A model that a GPU and its host's CPU train alike.

    Attributes:
        narrow: in the 16-bit precision of the device; else in fp32.
        on_cpu: what else the CPU is told, where it lacks what a GPU has.
    """

    name: str
    family: str
    narrow: bool = True
    values: dict[str, Value] = {}  # noqa: RUF012  (a NamedTuple's default, which nobody changes)
    on_cpu: dict[str, Value] = {}  # noqa: RUF012


EMULATED: dict[str, Value] = {"precision.emulate": True}
AGAINST_CPU = (
    AgainstCpu("GPT", "GPT", narrow=False),
    AgainstCpu("Llama", "Llama"),
    AgainstCpu("mixture", "mixture"),
    AgainstCpu("mixture", "mixture", narrow=False),
    AgainstCpu("latent attention", "latent"),
    AgainstCpu("separate documents, Llama", "Llama", values={"data.separate_documents": True}),
    AgainstCpu("separate documents, Llama", "Llama", narrow=False, values={"data.separate_documents": True}),
)
FP8_AGAINST_CPU = (
    AgainstCpu("fp8 tensors, Llama", "Llama", values={"precision.matmul_recipe": "fp8-tensorwise"}, on_cpu=EMULATED),
    AgainstCpu("fp8 rows, Llama", "Llama", values={"precision.matmul_recipe": "fp8-rowwise"}, on_cpu=EMULATED),
    AgainstCpu("fp8 rows, mixture", "mixture", values={"precision.matmul_recipe": "fp8-rowwise"}, on_cpu=EMULATED),
)
"""Where the device has such products; a CPU rounds the same operands, and multiplies them in fp32."""

SMALL: dict[str, Value] = {"model.num_layers": 4, "batch.global_batch_size": 4, "batch.micro_batch_size": 4}
"""One core computes the comparison."""

COMPILE_SECONDS = 90.0
"""What others report for models of that size; eight layers of Llama 2 7B took an H200's host about ten seconds."""


def references(bench: CheckWorkbench, known: References) -> Iterator[Check]:
    """The trainings on one device, whose steps become known: of all families where there are several ranks."""
    for family in FAMILIES if bench.num_ranks > 1 else ALONE:
        for dtype in ("fp32", bench.narrow):
            run = partial(_reference, bench, known, (family, dtype))
            yield Check(f"one device, {family} {dtype}", PART, 1, bench.scale.start_seconds, run)


def _reference(bench: CheckWorkbench, known: References, kind: Kind, devices: tuple[int, ...]) -> CheckFinding:
    ran = bench.run(f"one-{'-'.join(kind)}", bench.small(*kind, WHOLE), devices)
    if unfinished := finding_on_unfinished(ran):
        return unfinished
    known[kind] = ran.steps
    first, last = ran.steps[0].loss, ran.steps[-1].loss
    return CheckFinding(passed=last < first, seen=f"loss {first:.4f} to {last:.4f}", figures=figures_of(ran))


def variants(bench: CheckWorkbench, known: References) -> Iterator[Check]:
    """One device once more, in other ways."""
    start = bench.scale.start_seconds
    for (name, values), kind in zip(WAYS.items(), kinds(bench), strict=False):
        run = partial(as_reference, bench, known, kind, values, name)
        yield Check(f"{name}, {' '.join(kind)}", PART, 1, start, run)
    yield _against_cpu(bench, AGAINST_CPU[0])


def comparisons_with_cpu(bench: CheckWorkbench) -> Iterator[Check]:
    """All others than the simplest, which take long: one core computes two trainings for each."""
    for which in (*AGAINST_CPU[1:], *(FP8_AGAINST_CPU if bench.kind == "gpu" and bench.has_fp8 else ())):
        yield _against_cpu(bench, which)


def _against_cpu(bench: CheckWorkbench, which: AgainstCpu) -> Check:
    dtype: Dtype = bench.narrow if which.narrow else "fp32"
    run = partial(_as_on_cpu, bench, which, dtype)
    return Check(f"as on the host's CPU, {which.name} {dtype}", PART, 1, 2 * bench.scale.start_seconds, run)


def compiled_layers(bench: CheckWorkbench, known: References) -> Iterator[Check]:
    """Compiled layers, which take the longest. Building C++ for CPUs would take minutes, and say nothing of a GPU."""
    if bench.kind == "gpu":
        kind: Kind = ("Llama", bench.narrow)
        run = partial(as_reference, bench, known, kind, {**WHOLE, "training.compile_layers": True}, "compiled")
        yield Check(f"compiled layers, {' '.join(kind)}", PART, 1, COMPILE_SECONDS, run)


def _as_on_cpu(bench: CheckWorkbench, which: AgainstCpu, dtype: Dtype, devices: tuple[int, ...]) -> CheckFinding:
    """The device against the cores of its host: both go on from a checkpoint, because they draw other first weights."""
    folder = f"{which.name} {dtype}".replace(",", "").replace(" ", "-")
    values = {**SMALL, **which.values}
    on_cpu = partial(bench.small, which.family, dtype, on_cpu=True)
    saving: dict[str, Value] = {"training.num_steps": 2, "checkpoint.every_steps": 2}
    first = bench.run(f"saved-{folder}", on_cpu({**values, **which.on_cpu, **saving}), ())
    values["checkpoint.load"] = str(bench.trial(f"saved-{folder}").checkpoints.absolute())
    expected = bench.run(f"loaded-{folder}", on_cpu({**values, **which.on_cpu}), ())
    ran = bench.run(f"compared-{folder}", bench.small(which.family, dtype, values), devices)
    return finding_on_unfinished(first, expected, ran) or finding_on_steps(ran, expected.steps, dtype)
