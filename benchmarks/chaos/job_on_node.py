"""The job of a trial in which only the training is made up: it sleeps, counts its executions, and ends as ordered.

Everything else is real: how the job knows that a folder is its own, how it takes it from earlier attempts, and how its
end is written. The module travels to the nodes by value, because the snapshot of the code holds no benchmarks.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

ORDERS = "orders.json"
STEP_SECONDS = 0.1
PATIENCE_SECONDS = 120


def made_up_training(folder: str) -> None:
    """Run one rank of a trial; `ORDERS` in the sweep's folder says how long it takes and how it ends."""
    trial = Path(folder)
    orders: dict[str, Any] = json.loads((trial.parents[1] / ORDERS).read_text())
    order: dict[str, Any] = orders["default"] | orders.get(trial.name, {})
    if skew := order.get("clock_ahead_seconds"):
        put_clock_ahead(skew)
    if order.get("without_links"):
        take_away_links()
    _replace_torch(trial, order)
    from launcher.job import run_in_slurm

    run_in_slurm(folder)


def quick_job(folder: str) -> None:
    """The least that a job can do: one line that counts it, and a measurement. For sweeps of many points."""
    if os.environ["SLURM_PROCID"] != "0":
        return
    trial = Path(folder)
    orders: dict[str, Any] = json.loads((trial.parents[1] / ORDERS).read_text())
    note(trial, "start")
    fingerprints: dict[str, str] = orders["fingerprints"]
    told = orders["measurement"] | {"fingerprint": fingerprints[trial.name], "ended": time.time()}
    text = json.dumps(told | {"performance": _numbers_of(trial, told["performance"])})
    draft = trial / ".measurement"
    draft.write_text(text)
    draft.replace(trial / "measurement.json")
    note(trial, "complete")


def executions_of(sweep: Path) -> Path:
    """The list of executions, beside the sweep's folder, whose disk may be full."""
    return sweep.with_name(f"{sweep.name}-executions.log")


def note(trial: Path, event: str) -> None:
    """One line in the list of executions, written at once and whole, whoever else writes there."""
    job = os.environ.get("SLURM_JOB_ID", "-")
    node = os.environ.get("SLURMD_NODENAME", "-")
    line = f"{event} {trial.name} {job} {os.environ.get('SLURM_PROCID', '0')} {os.getpid()} {node}\n"
    descriptor = os.open(executions_of(trial.parents[1]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def take_away_links() -> None:
    """From now on the file system has no hard links in this process, as FAT and some object stores have none."""

    def refuse(*arguments: object, **further: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    os.link = refuse


def put_clock_ahead(seconds: float) -> None:
    real = time.time
    time.time = lambda: real() + seconds


def _replace_torch(trial: Path, order: dict[str, Any]) -> None:
    """Stand-ins for the two modules that import torch; the others are the real ones."""
    world, rank = ModuleType("train_core.process.world"), ModuleType("train_core.job.rank")
    world.require_seat = _seat  # type: ignore[attr-defined]
    rank.run_rank = lambda folder, seat, kind, index, on_step, stop_asked: _train(trial, folder, seat, order)  # type: ignore[attr-defined]
    sys.modules |= {world.__name__: world, rank.__name__: rank}


def _seat() -> SimpleNamespace:
    rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    return SimpleNamespace(rank=rank, size=size, local_rank=int(os.environ["SLURM_LOCALID"]))


def _train(trial: Path, folder: Any, seat: Any, order: dict[str, Any]) -> Any:
    from train_core.trial.measurement import Measurement, Outcome, Performance

    note(trial, "start")
    if order.get("dies_of_sigterm", True):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    node = os.environ.get("SLURMD_NODENAME", "")
    started, num_steps = time.time(), max(1, round(order["seconds"] / STEP_SECONDS))
    for step in range(1, num_steps + 1):
        time.sleep(STEP_SECONDS)
        if seat.rank == 0:
            folder.append_metrics(_metrics(step, num_steps))
        if step == max(1, num_steps // 2) and order.get("end"):
            if seat.rank == order.get("rank", 0):
                _end_early(order, node)
                _half(trial).touch()
            else:
                _wait_for(_half(trial))
    if seat.rank == 0:
        note(trial, "complete")
    return Measurement(
        fingerprint=folder.read_experiment().fingerprint,
        outcome=Outcome.COMPLETED,
        cause="",
        performance=Performance.model_validate_json(json.dumps(_numbers_of(trial, order["performance"]))),
        started=started,
        ended=time.time(),
    )


def _numbers_of(trial: Path, common: dict[str, Any]) -> dict[str, Any]:
    """Those by which the judge knows whose they are: the step time of this trial, and this job's number as the loss."""
    seed = json.loads((trial / "trial.json").read_text())["experiment"]["training"]["seed"]
    return common | {"step_seconds": 0.1 + seed / 1000, "final_loss": float(os.environ["SLURM_JOB_ID"])}


def _half(trial: Path) -> Path:
    """Written by the rank that was ordered to fail, where it goes on instead."""
    return trial / f".half-{os.environ.get('SLURM_JOB_ID')}-{os.environ.get('SLURM_RESTART_COUNT', '0')}"


def _wait_for(path: Path) -> None:
    """As ranks wait in a collective for one that has failed: else the others could complete before it has."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(STEP_SECONDS)


def _end_early(order: dict[str, Any], node: str) -> None:
    """Fail as ordered, on every node or on the one that is named."""
    end = order.get("end")
    if end is None or order.get("on_node", node) != node:
        return
    if end == "hoards memory":
        hoard = [bytearray(os.urandom(1) * 50_000_000) for _ in range(40)]
        time.sleep(60 + len(hoard))
    if end == "kills itself":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError(end)


def _metrics(step: int, num_steps: int) -> Any:
    from train_core.trial.measurement import StepMetrics

    return StepMetrics(
        step=step,
        num_steps=num_steps,
        loss=1.0,
        gradient_norm=1.0,
        learning_rate=1e-3,
        step_seconds=STEP_SECONDS,
        tokens_per_second=1.0,
        model_flops_per_second_per_device=1.0,
        warmup=False,
        time=time.time(),
    )
