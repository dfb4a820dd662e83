"""What the trainer reaches on one GPU, and how well the cost model predicted it: `make bench-gpu`.

Each model is trained under the recomputation modes that the cost model says fit, each with the micro-batch predicted to
be fastest, then the fastest of them again with compiled layers. Every run becomes a row of `gpu_results.csv`, with the
device and the versions that it was measured with. Without a GPU nothing is measured and nothing is written.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.target import Target, at_least, at_most
from conf.experiment import Experiment
from conf.load import compose_tree, load_cluster, options, settings_of, with_values
from conf.schema import Value
from conf.units import GIBIBYTE
from train_core.costs import Estimate, estimate
from train_core.job.trial import run_trial_here
from train_core.measurement import Measurement
from train_core.trial_folder import TrialFolder

RESULTS = Path(__file__).with_name("gpu_results.csv")
TOKENS_PER_STEP = 2**17
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


class Run(NamedTuple):
    """One point, predicted and measured."""

    experiment: Experiment
    predicted: Estimate
    measured: Measurement


def main() -> list[Target]:
    """Measure, and return every figure beside its target; none without a GPU."""
    if not torch.cuda.is_available():
        print("bench-gpu: no GPU here, so nothing was measured.")
        return []
    cluster = cluster_of(torch.cuda.get_device_name(0))
    if cluster is None:
        print(f"bench-gpu: no conf/device describes {torch.cuda.get_device_name(0)!r}: add one, with its peaks.")
        return []
    return [target for name in MODELS for target in _bench(name, cluster)]


def cluster_of(device_name: str) -> str | None:
    """A cluster whose device this is, by the words of its name: `NVIDIA H200` is in `H200-141GB`."""
    words = device_name.replace("-", " ").split()
    for name in options("cluster"):
        for known in load_cluster(name).gpu_names:
            if known.split("-")[0] in words:
                return name
    return None


def _bench(name: str, cluster: str) -> Iterator[Target]:
    runs = [_run(name, experiment) for experiment in _candidates(name, cluster)]
    best = max(runs, key=_utilization, default=None)
    if best is not None and best.measured.performance is not None:
        runs.append(_run(name, _compiled(best.experiment)))
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


def _utilization(run: Run) -> float:
    return run.measured.performance.model_flops_utilization if run.measured.performance else -1.0


def _candidates(name: str, cluster: str) -> Iterator[Experiment]:
    """For each recomputation mode, yield the micro-batch that is predicted to be the fastest of those that fit."""
    configuration, changed = MODELS[name]
    tree = compose_tree([f"model={configuration}", f"cluster={cluster}", "precision=bf16"])
    sequences = TOKENS_PER_STEP // settings_of(tree).model.seq_length
    for recompute in RECOMPUTES:
        fitting = []
        for size in MICRO_BATCH_SIZES:
            values: dict[str, Value] = {
                **changed,
                "parallel.world_size": 1,
                "parallel.recompute": recompute,
                "batch.global_batch_size": sequences,
                "batch.micro_batch_size": size,
                "data.source": "synthetic",
            }
            experiment = settings_of(with_values(tree, values)).experiment()
            predicted = estimate(experiment)
            if predicted.fits:
                fitting.append((predicted.step_seconds, size, experiment))
        if fitting:
            # Of two that are equally fast, the smaller micro-batch; experiments themselves have no order.
            yield min(fitting, key=lambda one: one[:2])[2]


def _compiled(experiment: Experiment) -> Experiment:
    return experiment.model_copy(update={"training": experiment.training.model_copy(update={"compile_layers": True})})


def _run(name: str, experiment: Experiment) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        trial = TrialFolder(Path(folder) / "trials" / "one")
        trial.write_trial({"experiment": experiment.model_dump(mode="json")})
        measured = run_trial_here(trial.path, (0,))
    run = Run(experiment, estimate(experiment), measured)
    _append(name, run)
    return run


def _append(name: str, run: Run) -> None:
    row = _row(name, run)
    is_new = not RESULTS.exists()
    # Rows are only ever added, run by run: an interrupted benchmark keeps what it has measured.
    with RESULTS.open("a", newline="") as file:
        writer = csv.DictWriter(file, row.keys())
        if is_new:
            writer.writeheader()
        writer.writerow(row)
    print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)


def _row(name: str, run: Run) -> dict[str, str]:
    experiment, predicted, performance = run.experiment, run.predicted, run.measured.performance
    row = {
        "when": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(0),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "model": name,
        "layout": experiment.label,
        "compiled": str(experiment.training.compile_layers),
        "outcome": str(run.measured.outcome),
    }
    figures = {
        "measured_step_seconds": f"{performance.step_seconds:.4f}" if performance else "",
        "predicted_step_seconds": f"{predicted.step_seconds:.4f}",
        "measured_mfu_pct": f"{100 * performance.model_flops_utilization:.1f}" if performance else "",
        "measured_memory_gib": f"{performance.peak_memory_bytes[0] / GIBIBYTE:.2f}" if performance else "",
        "predicted_memory_gib": f"{predicted.allocated_bytes / GIBIBYTE:.2f}",
    }
    return row | figures
