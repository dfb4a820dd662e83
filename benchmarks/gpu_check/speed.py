"""The speed of three shapes beside what the cost model predicted: utilization, memory, and where a step goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from benchmarks.gpu_check.agreement import figures_of
from benchmarks.gpu_check.check import Check, CheckFinding, CheckLeftOut
from benchmarks.gpu_check.scale import FAMILIES
from benchmarks.gpu_check.workbench import CheckWorkbench
from conf.compose.load import compose_tree, settings_of
from conf.compose.tree import Tree, with_values
from conf.errors import InfeasiblePlan
from conf.plan.experiment import Experiment
from conf.types.schema import Value
from costs import Estimate, estimate
from results.analysis.findings.comparable import measured_terms, predicted_terms
from train_core.trial.measurement import Performance

PART = "speed"
SECONDS = 75.0
"""The expected time of one shape: half a minute to start and to allocate, the rest for its steps."""

MOST_SECONDS = 240.0
STEP_SECONDS = 2.0
"""Batches are chosen so that a step is predicted to take no longer."""

MEMORY_SHARE = 0.95
"""The share of memory that may be predicted full: a run that ends for lack of memory would say nothing of speed."""

BATCHES = (64, 32, 16, 8, 4, 2, 1)
"""Sequences of one replica in a step."""

MICRO_BATCH_SIZES = (1, 2, 4, 8, 16)
RECOMPUTES = ("none", "selective", "full")


class Shape(NamedTuple):
    """A model and the devices on which its speed is measured.

    Attributes:
        model: an option of conf/model.
        values: what differs from it.
        layers: the most that fit are taken; empty leaves the model as it is.
        tensor: whether the tensor axis takes all devices; else the data axis does.
        num_devices: None takes all.
    """

    name: str
    model: str
    values: dict[str, Value]
    layers: Sequence[int] = ()
    tensor: bool = False
    num_devices: int | None = None


GPU_SHAPES = (
    Shape(
        "GPT 1.3B",
        "gpt-1.4b",  # its hidden size of 2064 is no multiple of 128, which tensor cores do not like
        {
            "model.hidden_size": 2048,
            "model.ffn_hidden_size": 8192,
            "model.num_attention_heads": 16,
            "model.num_query_groups": 16,
            "model.vocab_size": 51200,
        },
        layers=(24, 16, 8, 4),
        num_devices=1,
    ),
    Shape("Llama 2 7B", "llama-2-7b", {}, layers=(32, 24, 16, 8, 4)),
    Shape("Llama 2 70B layers", "llama-2-70b", {}, layers=(16, 8, 4, 2, 1), tensor=True),
)
CPU_SHAPES = (
    Shape("tiny GPT", "tiny", {}, num_devices=1),
    Shape("tiny Llama", "tiny", FAMILIES["Llama"], layers=(8, 4)),
    Shape(
        "tiny wide layers", "tiny", {"model.hidden_size": 64, "model.ffn_hidden_size": 256}, layers=(2,), tensor=True
    ),
)


def speeds(bench: CheckWorkbench) -> Iterator[Check]:
    """Each shape takes all devices, so that nothing else disturbs it."""
    for shape in GPU_SHAPES if bench.kind == "gpu" else CPU_SHAPES:
        seconds = SECONDS if bench.kind == "gpu" else bench.scale.start_seconds
        yield Check(shape.name, PART, bench.num_ranks, seconds, partial(_speed, bench, shape))


def _speed(bench: CheckWorkbench, shape: Shape, devices: tuple[int, ...]) -> CheckFinding:
    chosen = chosen_layout(bench, shape)
    if chosen is None:
        raise CheckLeftOut("it is predicted not to fit in any layout")
    ran = bench.run(f"speed {shape.name}".replace(" ", "-"), chosen.experiment, devices, MOST_SECONDS)
    layers = chosen.experiment.model.num_layers
    figures = figures_of(ran) | {"layers": layers, "layout": chosen.experiment.label}
    figures["num_devices"] = chosen.experiment.parallel.world_size
    figures["predicted"] = _predicted_figures(chosen.predicted)
    performance = ran.measurement.performance
    if performance is None:
        return CheckFinding(passed=False, seen=ran.why, figures=figures)
    figures["measured"] = _measured_figures(performance)
    seen = f"{chosen.experiment.label}: MFU {_percent(performance.model_flops_utilization)} measured"
    seen += f", {_percent(chosen.predicted.model_flops_utilization)} predicted"
    return CheckFinding(passed=True, seen=seen, figures=figures)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def chosen_layout(bench: CheckWorkbench, shape: Shape) -> FastestFit | None:
    """The most layers that fit, the largest batch with short steps, and the fastest layout of these."""
    size = 2 ** ((shape.num_devices or bench.num_devices).bit_length() - 1)  # heads and batches divide by powers of two
    tree = _tree(bench, shape, size)
    replicas = 1 if shape.tensor else size
    for layers in shape.layers or (None,):
        own = tree if layers is None else with_values(tree, {"model.num_layers": layers})
        smallest = fastest_fit(own, _choices(replicas, 1))
        if smallest is not None:
            larger = (fastest_fit(own, _choices(replicas, batch)) for batch in BATCHES)
            short = (fit for fit in larger if fit is not None and fit.predicted.step_seconds <= STEP_SECONDS)
            return next(short, smallest)
    return None


def _tree(bench: CheckWorkbench, shape: Shape, size: int) -> Tree:
    tree = {**bench.tree, "model": compose_tree([f"model={shape.model}"])["model"]}
    tensor_size = size if shape.tensor else 1
    return with_values(
        tree,
        {
            **shape.values,
            "parallel.world_size": size,
            "parallel.tensor_parallel_size": tensor_size,
            "parallel.sequence_parallel": tensor_size > 1,
            "precision.dtype": bench.narrow if bench.kind == "gpu" else "fp32",
            "data.source": "synthetic",
            "profile.breakdown": True,
            "training.num_steps": 10,
            "training.num_warmup_steps": 4,
            "watch.hang_seconds": max(60.0, bench.scale.hang_seconds),
        },
    )


def _choices(replicas: int, batch: int) -> dict[str, Sequence[Value]]:
    return {
        "batch.global_batch_size": [batch * replicas],
        "parallel.zero_stage": [1, 2, 3] if replicas > 1 else [0],
        "parallel.recompute": RECOMPUTES,
        "batch.micro_batch_size": [size for size in MICRO_BATCH_SIZES if size <= batch],
    }


def _predicted_figures(predicted: Estimate) -> dict[str, Any]:
    return {
        "model_flops_utilization": predicted.model_flops_utilization,
        "step_seconds": predicted.step_seconds,
        "memory_bytes": predicted.allocated_bytes,
        "terms": predicted_terms(predicted.step_terms),
    }


def _measured_figures(performance: Performance) -> dict[str, Any]:
    breakdown = performance.breakdown
    return {
        "model_flops_utilization": performance.model_flops_utilization,
        "step_seconds": performance.step_seconds,
        "memory_bytes": max(performance.peak_memory_bytes),
        "terms": measured_terms(breakdown.slowest) if breakdown else None,
    }


class FastestFit(NamedTuple):
    """An experiment that fits, and what it should cost."""

    experiment: Experiment
    predicted: Estimate


def fastest_fit(tree: Tree, choices: Mapping[str, Sequence[Value]]) -> FastestFit | None:
    """The fastest of all combinations of values, smaller ones first; of equally fast ones the first."""
    return min(_fits(tree, choices), key=lambda fit: fit.predicted.step_seconds, default=None)


def _fits(tree: Tree, choices: Mapping[str, Sequence[Value]]) -> Iterator[FastestFit]:
    for values in product(*choices.values()):
        try:
            experiment = settings_of(with_values(tree, dict(zip(choices, values, strict=True)))).experiment()
        except InfeasiblePlan:
            continue
        predicted = estimate(experiment)
        if predicted.peak_memory_bytes <= MEMORY_SHARE * predicted.memory_capacity_bytes:
            yield FastestFit(experiment, predicted)
