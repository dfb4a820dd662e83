"""Sweeps on disk for the tests of `results`. Every number is MADE UP for the test: nothing here was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from conf.errors import InfeasiblePlan
from conf.plan.experiment import Experiment
from conf.types.cluster_spec import ClusterSpec, DeviceSpec, EfficiencySpec, LinkSpec
from conf.types.model_spec import ModelSpec
from conf.types.schema import (
    BatchPlan,
    CheckpointPlan,
    DataSpec,
    ParallelPlan,
    PrecisionPlan,
    ProfilePlan,
    TrainingPlan,
    WatchPlan,
)
from conf.types.sites import TrackingSpec
from conf.types.sweep_spec import SweepSpec
from costs import Estimate, estimate
from results.report.report import ReportPaths, write_report
from sweeps.folder.submission import JobShape, Submission, write_submission
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, SweepRecord, Trial
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Environment, Measurement, Outcome, Performance, StepMetrics, SystemUse

CREATED = 1_790_000_000.0  # 2026-09-21 14:13:20 UTC
NUM_STEPS = 6
PROXY = ModelSpec(
    name="made-up-proxy",
    family="gpt",
    num_layers=4,
    hidden_size=64,
    ffn_hidden_size=256,
    num_attention_heads=4,
    num_query_groups=4,
    head_size=None,
    rotary_base=None,
    gated_mlp=False,
    tied_embeddings=True,
    vocab_size=256,
    seq_length=32,
)
FULL = PROXY.model_copy(
    update={
        "name": "made-up-175b",
        "num_layers": 96,
        "hidden_size": 12288,
        "ffn_hidden_size": 49152,
        "num_attention_heads": 96,
        "num_query_groups": 96,
        "vocab_size": 50688,
        "seq_length": 2048,
    }
)


def cluster(name: str = "made-up-cluster", num_nodes: int = 16, memory_bytes: int = 64 * 2**30) -> ClusterSpec:
    device = DeviceSpec(
        name="made-up device",
        kind="gpu",
        peak_flops_per_second={"fp32": 50e12, "bf16": 200e12},
        peak_source="made up",
        memory_bytes=memory_bytes,
        memory_bandwidth_bytes_per_second=1.6e12,
        memory_source="made up",
        num_multiprocessors=100,
        watts=400,
        watts_source="made up",
        price_per_hour=2.0,
        price_source="made up",
    )
    efficiency = EfficiencySpec(matmul=0.6, attention=0.5, memory=0.8, link=0.8, kernel_seconds=5e-6, source="made up")
    link = LinkSpec(name="wire", num_devices=8 * num_nodes, bandwidth_bytes_per_second=2e10, latency_seconds=1e-5)
    return ClusterSpec(
        name=name,
        num_nodes=num_nodes,
        devices_per_node=8,
        cores_per_node=None,
        gpu_names=(),
        device=device,
        efficiency=efficiency,
        reserved_memory_bytes=2**30,
        fragmentation=0.0,
        reserved_memory_source="made up",
        links=(link,),
    )


def experiment(**point: Any) -> Experiment:
    """The proxy on one device; keys of `point` are fields of the parallel plan, the batch, or `model`."""
    parallel: dict[str, Any] = {
        "world_size": 1,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "sequence_parallel": False,
    }
    parallel |= {"zero_stage": 0, "recompute": "none", "tensor_parallel_across_nodes": False}
    parallel |= {"virtual_pipeline_size": 1, "schedule": "1f1b", "layers_per_stage": None, "recompute_every": 1}
    batch = {"global_batch_size": 8, "micro_batch_size": 1}
    training: dict[str, Any] = {
        "num_steps": NUM_STEPS,
        "num_warmup_steps": 2,
        "learning_rate": 1e-3,
        "min_learning_rate": 1e-4,
    }
    training |= {"learning_rate_warmup_steps": 1, "weight_decay": 0.1, "adam_beta1": 0.9, "adam_beta2": 0.95}
    training |= {"adam_epsilon": 1e-8, "clip_gradient_norm": 1.0, "seed": 1}
    training |= {"dropout": 0.0, "compile_layers": False, "evaluate_every": None, "num_evaluation_batches": 1}
    chosen = {key: value for key, value in point.items() if key not in ("model", "cluster", "dtype")}
    return Experiment(
        model=point.get("model", PROXY),
        cluster=point.get("cluster", cluster()),
        parallel=ParallelPlan(**(parallel | {key: chosen[key] for key in chosen if key in parallel})),
        batch=BatchPlan(**(batch | {key: chosen[key] for key in chosen if key in batch})),
        precision=PrecisionPlan(
            dtype=point.get("dtype", "fp32"), gradient_dtype="fp32", initial_loss_scale=1.0, loss_scale_window=1
        ),
        data=DataSpec(
            source="text", path=None, tokenizer="bytes", max_bytes=1000, cache_dir=None, held_out_fraction=0.0
        ),
        training=TrainingPlan(**training),
        checkpoint=CheckpointPlan(every_steps=None, keep_last=1, asynchronous=False, load=None),
        watch=WatchPlan(hang_seconds=600.0, compare_replicas_every=None, straggler_ratio=2.0, max_overflows=1),
        profile=ProfilePlan(breakdown=False, trace_steps=(), trace_ranks=()),
    )


def made_up_estimate(value: Experiment) -> Estimate:
    """Round numbers that do not follow the cost model, so that golden files outlive its improvements."""
    step_seconds = 1.0 + value.parallel.tensor_parallel_size / 10 + value.parallel.pipeline_parallel_size / 100
    model_flops = 6e12 * value.batch.global_batch_size * value.parallel.world_size
    rate = model_flops / step_seconds / value.parallel.world_size
    model_parallel_size = value.parallel.tensor_parallel_size * value.parallel.pipeline_parallel_size
    peak_memory = 48 * 2**30 * value.batch.micro_batch_size // model_parallel_size
    capacity = value.cluster.device.memory_bytes
    return estimate(value).model_copy(
        update={
            "model_flops": int(model_flops),
            "hardware_flops": int(model_flops * 4 / 3),
            "worst_stage": 0,
            "peak_memory_bytes": peak_memory,
            "memory_capacity_bytes": capacity,
            "shortfall_bytes": max(0, peak_memory - capacity),
            "step_seconds": step_seconds,
            "tokens_per_second": 1000.0 / step_seconds,
            "model_flops_per_second_per_device": rate,
            "hardware_flops_per_second_per_device": rate * 4 / 3,
            "model_flops_utilization": rate / 200e12,
            "hardware_flops_utilization": rate * 4 / 3 / 200e12,
        }
    )


def trial(trial_id: str, is_baseline: bool = False, **point: Any) -> Trial:
    dotted = {key: value for key, value in point.items() if key not in ("model", "cluster", "dtype")}
    try:
        value = experiment(**point)
    except InfeasiblePlan as reason:
        return Trial(trial_id=trial_id, point=dotted, infeasible_reason=str(reason), is_baseline=is_baseline)
    predicted = made_up_estimate(value)
    lacking = predicted.shortfall_bytes / 2**30
    return Trial(
        trial_id=trial_id,
        point=dotted,
        experiment=value,
        estimate=predicted,
        infeasible_reason=None if predicted.fits else f"does not fit: {lacking:.1f} GiB short",
        selected=predicted.fits,
        is_baseline=is_baseline,
    )


def performance(tokens_per_second: float, num_devices: int = 1, **changes: Any) -> Performance:
    """1e9 FLOPs a token, a batch of 256 tokens, and a spread of 10 %."""
    flops, seconds = 256 * 1e9, 256 / tokens_per_second
    rate, peak = flops / seconds / num_devices, 1e12
    values: dict[str, Any] = {
        "step_seconds": seconds,
        "step_seconds_min": seconds * 0.95,
        "step_seconds_max": seconds * 1.05,
        "num_timed_steps": NUM_STEPS - 2,
        "num_devices": num_devices,
        "tokens_per_second": tokens_per_second,
        "model_flops": flops,
        "hardware_flops": flops * 4 / 3,
        "flops_formula": "made-up-v0",
        "model_flops_per_second_per_device": rate,
        "hardware_flops_per_second_per_device": rate * 4 / 3,
        "peak_flops_per_second": peak,
        "peak_source": "made up for the test",
        "model_flops_utilization": rate / peak,
        "hardware_flops_utilization": rate * 4 / 3 / peak,
        "peak_memory_bytes": tuple(2**29 + rank * 2**20 for rank in range(num_devices)),
        "losses": tuple(5.0 - math.log1p(step) for step in range(NUM_STEPS)),
        "final_loss": 5.0 - math.log1p(NUM_STEPS - 1),
        "num_parameters": 1000,
    }
    return Performance(**(values | changes))


ENVIRONMENT = Environment(
    hostname="made-up-host",
    device="made-up device",
    backend="gloo",
    torch_version="2.0.0",
    python_version="3.11.0",
    git_sha="0123abc",
    num_cores=2,
)


def step(number: int, tokens_per_second: float = 100.0, started: float = CREATED) -> StepMetrics:
    return StepMetrics(
        step=number,
        num_steps=NUM_STEPS,
        loss=5.0 - math.log1p(number - 1),
        gradient_norm=1.0,
        learning_rate=1e-3,
        step_seconds=256 / tokens_per_second * (1 + 0.01 * (number % 3)),
        tokens_per_second=tokens_per_second,
        model_flops_per_second_per_device=tokens_per_second * 1e9,
        warmup=number <= 2,
        time=started + number,
        system=SystemUse(device_watts=300.0, cpu_cores=1.5, resident_bytes=2**29) if number % 3 == 0 else None,
    )


def write_steps(folder: SweepFolder, trial_id: str, numbers: Sequence[int], tokens_per_second: float = 100.0) -> None:
    """As a job in Slurm leaves them."""
    files = folder.trial(trial_id)
    files.path.mkdir(parents=True, exist_ok=True)
    write_submission(files, in_slurm(files))
    for number in numbers:
        files.append_metrics(step(number, tokens_per_second))


def in_slurm(files: TrialFolder) -> Submission:
    return Submission(
        executor="slurm",
        job_id="7",
        hostname="made-up-login",
        attempt=1,
        submitted=CREATED,
        shape=JobShape(num_nodes=1, tasks_per_node=1, uses_gpus=True),
        output=str(files.logs / "7_%t_log.out"),
        error=str(files.logs / "7_%t_log.err"),
    )


def finish(folder: SweepFolder, of: Trial, how: Performance | tuple[Outcome, str], **changes: Any) -> None:
    """Leave what a trial leaves that measured `how`, or that ended with that outcome and cause."""
    assert of.experiment is not None
    measured = how if isinstance(how, Performance) else None
    outcome, cause = (Outcome.COMPLETED, "") if isinstance(how, Performance) else how
    files = folder.trial(of.trial_id)
    files.write_trial({"experiment": of.experiment.model_dump(mode="json")})
    if measured and not files.metrics.exists():
        write_steps(folder, of.trial_id, range(1, NUM_STEPS + 1), measured.tokens_per_second)
    values: dict[str, Any] = {
        "fingerprint": of.experiment.fingerprint,
        "outcome": outcome,
        "cause": cause,
        "failing_rank": None if measured else 1,
        "traceback": None if measured else "Traceback: made up",
        "performance": measured,
        "environment": ENVIRONMENT,
        "started": CREATED,
        "ended": CREATED + 60,
    }
    files.write_measurement(Measurement(**(values | changes)))
    files.logs.mkdir(exist_ok=True)
    (files.logs / "rank-0.out").write_text("made up log line\n")


WriteSweep = Callable[..., Sweep]


@pytest.fixture
def write_sweep(tmp_path: Path) -> WriteSweep:
    return sweep_writer(tmp_path)


def sweep_writer(tmp_path: Path) -> WriteSweep:
    """A sweep on disk. `how` maps a trial's id to its performance, or to an outcome with its cause."""

    def write(
        trials: Sequence[Trial],
        how: Mapping[str, Performance | tuple[Outcome, str]] | None = None,
        plan: Sequence[Trial] = (),
        mode: Literal["cluster", "proxy"] = "proxy",
        published: Sequence[str] = (),
        name: str = "made-up",
    ) -> Sweep:
        folder = SweepFolder(tmp_path / "runs" / name)
        spec = SweepSpec(
            name=name,
            question="Which layout of a made-up model is fastest?",
            axes={},
            points=(),
            baseline={},
            max_trials=20,
            published=tuple(published),
            proxy=None,
        )
        record = SweepRecord(
            name=name,
            mode=mode,
            spec=spec,
            tracking=SQLITE,
            git_sha="0123abc",
            created=CREATED,
            plan=tuple(plan),
            trials=tuple(trials),
        )
        folder.write_record(record)
        for member in trials:
            if how and member.trial_id in how:
                finish(folder, member, how[member.trial_id])
        return Sweep(folder, record)

    return write


def report_of(sweep: Sweep) -> ReportPaths:
    """The report of what is on disk now."""
    return write_report(sweep, sweep.read())


SQLITE = TrackingSpec(kind="sqlite", uri=None, experiment="made-up")
