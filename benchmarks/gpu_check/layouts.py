"""Every axis, on two, four and eight ranks, against one rank: the same steps; and some twice: the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import cycle
from typing import NamedTuple

from benchmarks.gpu_check.agreement import EXACT, finding_on_bits, finding_on_steps, finding_on_unfinished
from benchmarks.gpu_check.check import Check, CheckFinding, CheckLeftOut
from benchmarks.gpu_check.scale import TRAINING
from benchmarks.gpu_check.workbench import CheckWorkbench
from conf.types.schema import Dtype, Value
from train_core.trial.measurement import StepMetrics

PART = "layouts"


class CheckLayout(NamedTuple):
    """A way over the axes.

    Attributes:
        data: replicas, which share out the experts where `expert` says so.
        family: the model that has this axis; empty where all have it.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    schedule: str = "1f1b"
    sequence_parallel: bool = False
    zero_stage: int = 0
    recompute: str = "none"
    exchange: str = "ring"
    family: str = ""

    @property
    def num_ranks(self) -> int:
        return self.tensor * self.pipeline * self.data * self.context

    def __str__(self) -> str:
        parts = [
            f"tp{self.tensor}{' sp' if self.sequence_parallel else ''}" if self.tensor > 1 else "",
            f"pp{self.pipeline} {self.schedule}" if self.pipeline > 1 else "",
            f"cp{self.context} {self.exchange}" if self.context > 1 else "",
            f"dp{self.data} zero{self.zero_stage}" if self.data > 1 else "",
            f"ep{self.expert}" if self.expert > 1 else "",
            f"recompute {self.recompute}" if self.recompute != "none" else "",
        ]
        return " ".join(part for part in parts if part)

    def values(self) -> dict[str, Value]:
        num_micro_batches = max(2, self.pipeline)
        global_batch_size = TRAINING["batch.global_batch_size"]
        assert isinstance(global_batch_size, int)
        return {
            "parallel.world_size": self.num_ranks,
            "parallel.tensor_parallel_size": self.tensor,
            "parallel.pipeline_parallel_size": self.pipeline,
            "parallel.virtual_pipeline_size": 2 if self.schedule == "interleaved" else 1,
            "parallel.schedule": self.schedule,
            "parallel.sequence_parallel": self.sequence_parallel,
            "parallel.zero_stage": self.zero_stage,
            "parallel.context_parallel_size": self.context,
            "parallel.context_exchange": self.exchange,
            "parallel.expert_parallel_size": self.expert,
            "parallel.recompute": self.recompute,
            "batch.micro_batch_size": global_batch_size // (self.data * num_micro_batches),
        }


LAYOUTS = {
    2: (
        CheckLayout(tensor=2),
        CheckLayout(tensor=2, sequence_parallel=True),
        CheckLayout(pipeline=2, schedule="gpipe"),
        CheckLayout(pipeline=2, schedule="1f1b"),
        CheckLayout(pipeline=2, schedule="interleaved"),
        CheckLayout(pipeline=2, schedule="zero-bubble"),
        CheckLayout(data=2, zero_stage=0),
        CheckLayout(data=2, zero_stage=1),
        CheckLayout(data=2, zero_stage=2),
        CheckLayout(data=2, zero_stage=3),
        CheckLayout(context=2),
        CheckLayout(context=2, exchange="gather"),
        CheckLayout(context=2, family="latent"),
        CheckLayout(data=2, expert=2, family="mixture"),
        CheckLayout(data=2, expert=2, zero_stage=1, family="mixture"),
        CheckLayout(tensor=2, sequence_parallel=True, family="latent"),
    ),
    4: (
        CheckLayout(tensor=4, sequence_parallel=True),
        CheckLayout(pipeline=4, schedule="1f1b", recompute="full"),
        CheckLayout(data=4, zero_stage=1),
        CheckLayout(tensor=2, pipeline=2, schedule="zero-bubble", sequence_parallel=True, recompute="pointwise"),
        CheckLayout(tensor=2, data=2, zero_stage=2),
        CheckLayout(tensor=2, data=2, sequence_parallel=True, zero_stage=3, recompute="selective"),
        CheckLayout(pipeline=2, data=2, schedule="interleaved", zero_stage=1),
        CheckLayout(pipeline=2, data=2, schedule="gpipe", zero_stage=0),
        CheckLayout(context=2, tensor=2, sequence_parallel=True),
        CheckLayout(context=4, exchange="gather"),
        CheckLayout(pipeline=2, data=2, expert=2, zero_stage=1, family="mixture"),
    ),
    8: (
        CheckLayout(tensor=8, sequence_parallel=True),
        CheckLayout(pipeline=8, schedule="interleaved"),
        CheckLayout(data=8, zero_stage=3, recompute="full"),
        CheckLayout(data=8, zero_stage=2),
        CheckLayout(tensor=2, pipeline=2, data=2, schedule="1f1b", sequence_parallel=True, zero_stage=1),
        CheckLayout(tensor=2, pipeline=2, data=2, schedule="zero-bubble", zero_stage=2),
        CheckLayout(tensor=4, data=2, sequence_parallel=True, zero_stage=3),
        CheckLayout(tensor=2, pipeline=4, schedule="interleaved", sequence_parallel=True, recompute="selective"),
    ),
}
"""Two ranks: each axis alone. Four and eight: each two axes meet."""

REPEATED = (CheckLayout(), CheckLayout(tensor=2, sequence_parallel=True), CheckLayout(data=2, zero_stage=2))
"""What is trained twice with deterministic kernels, on one device and on two."""

Kind = tuple[str, Dtype]
"""A family of models and the precision in which it is trained."""

References = dict[Kind, list[StepMetrics]]
"""The steps on one rank."""


def layouts(bench: CheckWorkbench, known: References, num_ranks: int) -> Iterator[Check]:
    """Every layout on that many ranks. Families and precisions take turns."""
    if num_ranks > bench.num_ranks:
        yield Check(f"{len(LAYOUTS[num_ranks])} layouts on {num_ranks} ranks", PART, num_ranks, 0, _impossible)
        return
    for layout, (usual, dtype) in zip(LAYOUTS[num_ranks], kinds(bench), strict=False):
        family = layout.family or usual
        name = f"{layout}, {family} {dtype}"
        run = partial(as_reference, bench, known, (family, dtype), layout.values(), name)
        yield Check(name, PART, num_ranks, bench.scale.start_seconds, run)


def kinds(bench: CheckWorkbench) -> Iterator[Kind]:
    """Families and precisions in turn: of each two layouts that stand beside each other both differ."""
    return cycle([("GPT", "fp32"), ("Llama", bench.narrow), ("GPT", bench.narrow), ("Llama", "fp32")])


def as_reference(
    bench: CheckWorkbench,
    known: References,
    kind: Kind,
    values: dict[str, Value],
    name: str,
    devices: tuple[int, ...],
) -> CheckFinding:
    """Train the small model with other values, and compare its steps with those on one device."""
    if kind not in known:
        raise CheckLeftOut(f"{' '.join(kind)} did not train on one device")
    ran = bench.run(name.replace(" ", "-"), bench.small(*kind, values), devices)
    return finding_on_unfinished(ran) or finding_on_steps(ran, known[kind], kind[1])


def _impossible(devices: tuple[int, ...]) -> CheckFinding:
    raise CheckLeftOut(f"there are {len(devices)} ranks")


def repeats(bench: CheckWorkbench) -> Iterator[Check]:
    """One check for every layout that there are ranks for."""
    for layout in REPEATED:
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
