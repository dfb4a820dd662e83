"""The utilization that the trainer reaches on one GPU, and how well the cost model predicted it: `make bench-gpu`.

Each model is trained under the recomputation modes that the cost model says fit, each with the micro-batch predicted to
be fastest, then the fastest of them again with compiled layers. Every run becomes a row of `gpu_results.csv` when it
ends, with the device and the versions that it was measured with. All together take less than ten minutes: a run that
would go beyond them is left out, and one that takes much longer than predicted is ended. Without a GPU nothing is
measured and nothing is written.
"""

from __future__ import annotations

import csv
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu_check.probe import Probe, cluster_of, probe_gpus
from benchmarks.target import Target, at_least, at_most
from conf.compose.load import compose_tree, settings_of
from conf.compose.tree import Tree, with_values
from conf.errors import InfeasiblePlan
from conf.plan.experiment import Experiment
from conf.types.schema import Value
from conf.units import GIBIBYTE
from train_core.costs import Estimate, estimate
from train_core.job.trial import run_trial_here
from train_core.measurement import Measurement
from train_core.trial_folder import TrialFolder

RESULTS = Path(__file__).with_name("gpu_results.csv")
TOKENS_PER_STEP = 2**16
NUM_STEPS = 8
BUDGET_SECONDS = 570.0
"""The time of all runs; with them, a job that is given ten minutes still prints its summary."""

START_SECONDS = 30.0
"""The time that a run takes beside its steps: importing torch, allocating and initializing."""

MOST_TIMES_PREDICTED = 3.0
"""A run that takes longer than this many times its predicted steps is ended."""

MICRO_BATCH_SIZES = (1, 2, 4, 8, 16)
RECOMPUTES = ("none", "selective", "full")
MODELS: dict[str, tuple[str, dict[str, Value]]] = {
    "GPT 1.3B": (
        "gpt-1.4b",  # its hidden size of 2064 is no multiple of 128, which tensor cores do not like
        {
            "model.hidden_size": 2048,
            "model.ffn_hidden_size": 8192,
            "model.num_attention_heads": 16,
            "model.num_query_groups": 16,
            "model.vocab_size": 51200,
        },
    ),
    "Llama 2 7B": ("llama-2-7b", {}),
}
"""Each model's configuration to start from, and the values in which it differs from that."""

PUBLISHED_MFU = 50.0
"""Upper end of what Megatron-LM and torchtitan publish for one such device: 40-50 %."""


class RunOnGpu(NamedTuple):
    """One point, predicted and measured."""

    experiment: Experiment
    predicted: Estimate
    measured: Measurement


class GpuSession(NamedTuple):
    """The device on which all runs are made, and the end of its time (monotonic seconds)."""

    probe: Probe
    cluster: str
    deadline: float


def main() -> list[Target]:
    """Measure, and return every figure beside its target; none without a GPU."""
    probe = probe_gpus()
    if not probe.devices:
        print(f"bench-gpu: {probe.problem or 'no GPU here'}, so nothing was measured.")
        return []
    cluster = cluster_of(probe.devices[0])
    if cluster is None:
        print(f"bench-gpu: no conf/device describes {probe.devices[0].name!r}: add one, with its peaks.")
        return []
    session = GpuSession(probe, cluster, time.monotonic() + BUDGET_SECONDS)
    return [target for name in MODELS for target in _bench(session, name)]


def _bench(session: GpuSession, name: str) -> Iterator[Target]:
    runs = [run for fit in _candidates(name, session.cluster) if (run := _run(session, name, fit))]
    best = max(runs, key=_utilization, default=None)
    if best is not None and best.measured.performance is not None:
        training = best.experiment.training.model_copy(update={"compile_layers": True})
        with_compiled_layers = best.experiment.model_copy(update={"training": training})
        if compiled := _run(session, name, FastestFit(with_compiled_layers, best.predicted)):
            runs.append(compiled)
        best = max(runs, key=_utilization)
    if best is None or best.measured.performance is None:
        return
    measured, predicted = best.measured.performance, best.predicted
    mfu = 100 * measured.model_flops_utilization
    yield at_least(f"{name}: MFU ({best.experiment.label})", 55, mfu, " %")
    yield at_least(f"{name}: MFU, above what others publish", PUBLISHED_MFU, mfu, " %")
    memory = measured.peak_memory_bytes[0]
    yield at_most(f"{name}: error of predicted memory", 5, _off(predicted.allocated_bytes, memory), " %")
    yield at_most(f"{name}: error of predicted step", 7, _off(predicted.step_seconds, measured.step_seconds), " %")


def _off(predicted: float, measured: float) -> float:
    return 100 * abs(predicted / measured - 1)


def _utilization(run: RunOnGpu) -> float:
    return run.measured.performance.model_flops_utilization if run.measured.performance else -1.0


def _candidates(name: str, cluster: str) -> list[FastestFit]:
    """For each recomputation mode the micro-batch that is predicted to be the fastest of those that fit.

    What is predicted to be the fastest of all comes first, should time run out.
    """
    configuration, changed = MODELS[name]
    tree = with_values(
        compose_tree([f"model={configuration}", f"cluster={cluster}", "precision=bf16"]),
        {**changed, "parallel.world_size": 1, "data.source": "synthetic", "training.num_steps": NUM_STEPS},
    )
    sequences = TOKENS_PER_STEP // settings_of(tree).model.seq_length
    batches: dict[str, Sequence[Value]] = {
        "batch.global_batch_size": [sequences],
        "batch.micro_batch_size": MICRO_BATCH_SIZES,
    }
    fits = (fastest_fit(tree, {"parallel.recompute": [recompute], **batches}) for recompute in RECOMPUTES)
    return sorted((fit for fit in fits if fit), key=lambda fit: fit.predicted.step_seconds)


def _run(session: GpuSession, name: str, fit: FastestFit) -> RunOnGpu | None:
    """The run; None where less time is left than it is predicted to take."""
    needed = START_SECONDS + fit.experiment.training.num_steps * fit.predicted.step_seconds
    if time.monotonic() + needed > session.deadline:
        print(f"bench-gpu: {name} {fit.experiment.label} takes about {needed:.0f} s, and less is left: left out.")
        return None
    with tempfile.TemporaryDirectory() as folder:
        trial = TrialFolder(Path(folder) / "trials" / "one")
        trial.write_trial({"experiment": fit.experiment.model_dump(mode="json")})
        measured = run_trial_here(trial.path, (0,), MOST_TIMES_PREDICTED * needed)
    run = RunOnGpu(fit.experiment, fit.predicted, measured)
    _append(_row(session, name, run))
    return run


def _append(row: dict[str, str]) -> None:
    is_new = not RESULTS.exists()
    # Rows are only ever added, run by run: an interrupted benchmark keeps what it has measured.
    with RESULTS.open("a", newline="") as file:
        writer = csv.DictWriter(file, row.keys())
        if is_new:
            writer.writeheader()
        writer.writerow(row)
    print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)


def _row(session: GpuSession, name: str, run: RunOnGpu) -> dict[str, str]:
    experiment, predicted, performance = run.experiment, run.predicted, run.measured.performance
    row = {
        "when": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": session.probe.devices[0].name,
        "torch": session.probe.torch,
        "runtime": session.probe.runtime,
        "model": name,
        "layout": experiment.label,
        "compiled": str(experiment.training.compile_layers),
        "outcome": str(run.measured.outcome),
        "cause": run.measured.cause,
    }
    figures = {
        "measured_step_seconds": f"{performance.step_seconds:.4f}" if performance else "",
        "predicted_step_seconds": f"{predicted.step_seconds:.4f}",
        "measured_mfu_pct": f"{100 * performance.model_flops_utilization:.1f}" if performance else "",
        "measured_memory_gib": f"{performance.peak_memory_bytes[0] / GIBIBYTE:.2f}" if performance else "",
        "predicted_memory_gib": f"{predicted.allocated_bytes / GIBIBYTE:.2f}",
    }
    return row | figures


class FastestFit(NamedTuple):
    """An experiment that fits, and what it should cost."""

    experiment: Experiment
    predicted: Estimate


def fastest_fit(tree: Tree, choices: Mapping[str, Sequence[Value]], memory_share: float = 1.0) -> FastestFit | None:
    """The fastest of all combinations; of equally fast ones the first. None where nothing fits.

    Args:
        choices: values of each dotted key, smaller ones first.
        memory_share: how much of a device's memory may be predicted to be full.
    """
    return min(_fits(tree, choices, memory_share), key=lambda fit: fit.predicted.step_seconds, default=None)


def _fits(tree: Tree, choices: Mapping[str, Sequence[Value]], memory_share: float) -> Iterator[FastestFit]:
    for values in product(*choices.values()):
        try:
            experiment = settings_of(with_values(tree, dict(zip(choices, values, strict=True)))).experiment()
        except InfeasiblePlan:
            continue
        predicted = estimate(experiment)
        if predicted.peak_memory_bytes <= memory_share * predicted.memory_capacity_bytes:
            yield FastestFit(experiment, predicted)
