"""Every axis, on two, four and eight devices, against one device: the same steps to the precision's rounding."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

from benchmarks.gpu_check.agreement import TOLERANCES, difference, judged, same_bits
from benchmarks.gpu_check.check import Check, Finding, LeftOut
from benchmarks.gpu_check.scale import FAMILIES, TRAINING
from benchmarks.gpu_check.workbench import Ran, Workbench
from conf.schema import Dtype, Value
from train_core.measurement import StepMetrics

PART = "layouts"


class Layout(NamedTuple):
    """A way over the axes."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    schedule: str = "1f1b"
    sequence_parallel: bool = False
    zero_stage: int = 0
    recompute: str = "none"

    @property
    def num_devices(self) -> int:
        return self.tensor * self.pipeline * self.data

    def __str__(self) -> str:
        parts = [
            f"tp{self.tensor}{' sp' if self.sequence_parallel else ''}" if self.tensor > 1 else "",
            f"pp{self.pipeline} {self.schedule}" if self.pipeline > 1 else "",
            f"dp{self.data} zero{self.zero_stage}" if self.data > 1 else "",
            f"recompute {self.recompute}" if self.recompute != "none" else "",
        ]
        return " ".join(part for part in parts if part)

    def values(self) -> dict[str, Value]:
        num_micro_batches = max(2, self.pipeline)
        global_batch_size = TRAINING["batch.global_batch_size"]
        assert isinstance(global_batch_size, int)
        return {
            "parallel.world_size": self.num_devices,
            "parallel.tensor_parallel_size": self.tensor,
            "parallel.pipeline_parallel_size": self.pipeline,
            "parallel.virtual_pipeline_size": 2 if self.schedule == "interleaved" else 1,
            "parallel.schedule": self.schedule,
            "parallel.sequence_parallel": self.sequence_parallel,
            "parallel.zero_stage": self.zero_stage,
            "parallel.recompute": self.recompute,
            "batch.micro_batch_size": global_batch_size // (self.data * num_micro_batches),
        }


LAYOUTS = {
    2: (
        Layout(tensor=2),
        Layout(tensor=2, sequence_parallel=True),
        Layout(pipeline=2, schedule="gpipe"),
        Layout(pipeline=2, schedule="1f1b"),
        Layout(pipeline=2, schedule="interleaved"),
        Layout(pipeline=2, schedule="zero-bubble"),
        Layout(data=2, zero_stage=0),
        Layout(data=2, zero_stage=1),
        Layout(data=2, zero_stage=2),
        Layout(data=2, zero_stage=3),
    ),
    4: (
        Layout(tensor=4, sequence_parallel=True),
        Layout(pipeline=4, schedule="1f1b", recompute="full"),
        Layout(data=4, zero_stage=1),
        Layout(tensor=2, pipeline=2, schedule="zero-bubble", sequence_parallel=True),
        Layout(tensor=2, data=2, zero_stage=2),
        Layout(tensor=2, data=2, sequence_parallel=True, zero_stage=3, recompute="selective"),
        Layout(pipeline=2, data=2, schedule="interleaved", zero_stage=1),
        Layout(pipeline=2, data=2, schedule="gpipe", zero_stage=0),
    ),
    8: (
        Layout(tensor=8, sequence_parallel=True),
        Layout(pipeline=8, schedule="interleaved"),
        Layout(data=8, zero_stage=3, recompute="full"),
        Layout(data=8, zero_stage=2),
        Layout(tensor=2, pipeline=2, data=2, schedule="1f1b", sequence_parallel=True, zero_stage=1),
        Layout(tensor=2, pipeline=2, data=2, schedule="zero-bubble", zero_stage=2),
        Layout(tensor=4, data=2, sequence_parallel=True, zero_stage=3),
        Layout(tensor=2, pipeline=4, schedule="interleaved", sequence_parallel=True, recompute="selective"),
    ),
}
"""Two devices: each axis alone. Four and eight: axes together, so that each pair of them meets."""

COMPILED = "compiled layers"
ALONE: dict[str, dict[str, Value]] = {
    "micro-batches of 2": {"batch.micro_batch_size": 2},
    "recompute selective": {"batch.micro_batch_size": 8, "parallel.recompute": "selective"},
    "recompute full": {"batch.micro_batch_size": 8, "parallel.recompute": "full"},
    COMPILED: {"batch.micro_batch_size": 8, "training.compile_layers": True},
}
"""What one device can do in other ways, which must not change what it computes."""

References = dict[tuple[str, Dtype], list[StepMetrics]]
"""The steps on one device, by family and precision."""


def references(bench: Workbench, known: References) -> Iterator[Check]:
    """The trainings on one device, with which all others are compared."""
    for family in FAMILIES:
        for dtype in ("fp32", bench.narrow):
            run = partial(_reference, bench, known, family, dtype)
            yield Check(f"one device, {family} {dtype}", PART, 1, bench.scale.start_seconds, run)


def _reference(bench: Workbench, known: References, family: str, dtype: Dtype, devices: tuple[int, ...]) -> Finding:
    experiment = bench.small(family, dtype, {"batch.micro_batch_size": 8})
    ran = bench.run(f"one-{family}-{dtype}", experiment, devices)
    if not ran.completed:
        return Finding(passed=False, seen=ran.why, figures=figures_of(ran))
    known[family, dtype] = ran.steps
    first, last = ran.steps[0].loss, ran.steps[-1].loss
    return Finding(passed=last < first, seen=f"loss {first:.4f} to {last:.4f}", figures=figures_of(ran))


def variants(bench: Workbench, known: References) -> Iterator[Check]:
    """One device once more, in other ways."""
    choices = _choices(bench)
    for (name, values), (family, dtype) in zip(ALONE.items(), choices, strict=False):
        if name == COMPILED and bench.kind == "cpu":
            continue  # building C++ takes longer than all other checks together, and says nothing of a GPU
        run = partial(_against_reference, bench, known, family, dtype, values, f"alone-{name}")
        # Compiling takes the longest of them, and nobody has timed it on a GPU yet.
        seconds = bench.scale.start_seconds * (3 if name == COMPILED else 1)
        yield Check(f"{name}, {family} {dtype}", PART, 1, seconds, run)
    yield Check("as on the host's CPU, GPT fp32", PART, 1, 3 * bench.scale.start_seconds, partial(_as_on_cpu, bench))
    yield Check("the same training twice, GPT fp32", PART, 1, bench.scale.start_seconds, partial(_repeat, bench, known))


def layouts(bench: Workbench, known: References, num_devices: int) -> Iterator[Check]:
    """Every layout on that many devices. Families and precisions take turns."""
    if num_devices > bench.num_devices:
        yield Check(f"{len(LAYOUTS[num_devices])} layouts on {num_devices} devices", PART, num_devices, 0, _impossible)
        return
    for layout, (family, dtype) in zip(LAYOUTS[num_devices], _choices(bench), strict=False):
        name = f"{layout}, {family} {dtype}"
        run = partial(_against_reference, bench, known, family, dtype, layout.values(), name)
        yield Check(name, PART, num_devices, bench.scale.start_seconds, run)


def _impossible(devices: tuple[int, ...]) -> Finding:
    raise LeftOut(f"this machine has {len(devices)} devices")


def _choices(bench: Workbench) -> Iterator[tuple[str, Dtype]]:
    # In this order the two schedules, or ZeRO stages, that stand beside each other differ in both.
    narrow = bench.narrow
    return cycle([("GPT", "fp32"), ("Llama", narrow), ("GPT", narrow), ("Llama", "fp32")])


def _against_reference(
    bench: Workbench,
    known: References,
    family: str,
    dtype: Dtype,
    values: dict[str, Value],
    name: str,
    devices: tuple[int, ...],
) -> Finding:
    if (family, dtype) not in known:
        raise LeftOut(f"{family} {dtype} did not train on one device")
    ran = bench.run(name.replace(" ", "-"), bench.small(family, dtype, values), devices)
    if not ran.completed:
        return Finding(passed=False, seen=ran.why, figures=figures_of(ran))
    return compared(ran, known[family, dtype], dtype)


def _as_on_cpu(bench: Workbench, devices: tuple[int, ...]) -> Finding:
    """The device against the cores of its host: both go on from a checkpoint, because they draw other first weights."""
    values: dict[str, Value] = {"batch.global_batch_size": 4, "batch.micro_batch_size": 4}
    saving: dict[str, Value] = {"training.num_steps": 2, "checkpoint.every_steps": 2}
    first = bench.run("cpu-saved", bench.small("GPT", "fp32", {**values, **saving}, on_cpu=True), ())
    values["checkpoint.load"] = str(bench.trial("cpu-saved").checkpoints.absolute())
    expected = bench.run("cpu-loaded", bench.small("GPT", "fp32", values, on_cpu=True), ())
    ran = bench.run("cpu-compared", bench.small("GPT", "fp32", values), devices)
    for job in (first, expected, ran):
        if not job.completed:
            return Finding(passed=False, seen=job.why, figures=figures_of(job))
    return compared(ran, expected.steps, "fp32")


def compared(ran: Ran, expected: list[StepMetrics], dtype: Dtype) -> Finding:
    """Whether a job that completed took the steps that are expected, to the rounding of its precision."""
    found, limit = difference(ran.steps, expected), TOLERANCES[dtype]
    figures = {"dtype": dtype, "loss_difference": found.loss, "norm_difference": found.norm} | figures_of(ran)
    return Finding(passed=found.within(limit), seen=judged(found, limit), figures=figures)


def _repeat(bench: Workbench, known: References, devices: tuple[int, ...]) -> Finding:
    if ("GPT", "fp32") not in known:
        raise LeftOut("GPT fp32 did not train on one device")
    ran = bench.run("again", bench.small("GPT", "fp32", {"batch.micro_batch_size": 8}), devices)
    return repeated(ran, known["GPT", "fp32"], bench.is_exact)


def repeated(ran: Ran, expected: list[StepMetrics], is_exact: bool) -> Finding:
    """Whether a training was repeated: to the last bit where that is promised, else within rounding."""
    if not ran.completed:
        return Finding(passed=False, seen=ran.why, figures=figures_of(ran))
    found, equal = difference(ran.steps, expected), same_bits(ran.steps, expected)
    figures = {"bitwise": equal, "loss_difference": found.loss, "norm_difference": found.norm} | figures_of(ran)
    passed = equal or (not is_exact and found.within(TOLERANCES["fp32"]))
    seen = f"equal bit for bit over {len(ran.steps)} steps" if equal else f"not bit for bit: {found}"
    return Finding(passed=passed, seen=seen, figures=figures)


def figures_of(ran: Ran) -> dict[str, Any]:
    """What the JSON file holds of a job. The host's name stays here."""
    measurement = ran.measurement.model_dump(mode="json", exclude={"environment": {"hostname"}})
    steps = [{"step": step.step, "loss": step.loss, "gradient_norm": step.gradient_norm} for step in ran.steps]
    return {"measurement": measurement, "steps": steps}
