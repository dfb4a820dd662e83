"""The allocation as a workplace, with a Slurm that answers as a real one does now and then."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from conf.errors import UsageError
from conf.types.sites import SlurmSpec
from launcher.allocation import step
from launcher.allocation import sweep as allocation_sweep
from launcher.allocation.nodes import AllocatedNode, SlurmAllocation
from launcher.allocation.packing import StepPlacement
from launcher.allocation.sweep import AllocationJob, run_inside
from launcher.allocation.workplace import AllocationRoom
from launcher.control.orders import SweepCommand
from launcher.job_payload import RUN_IN_SLURM
from launcher.sweep import slurm_rules
from sweeps.folder.journal import Cancelled, Journal
from sweeps.folder.submission import Submission, SurroundingJob, write_submission
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.composed import load
from tests.conftest import RecordOf
from tests.launcher.conftest import Silent, SlurmOf
from tests.launcher.test_run_here import seeds
from tests.messages import refused
from train_core.trial.measurement import Outcome


def test_an_allocation_whose_slurm_is_silent_is_one_message_and_its_job_is_run_again(
    folder: SweepFolder,
    record_of: RecordOf,
    slurm_of: SlurmOf,
    progress: Silent,
    tools: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(allocation_sweep, "PATIENCE_SECONDS", -1.0)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    tools(scontrol=f"echo $* >> {tmp_path}/asked; exit 1")
    sweep = Sweep(folder, record_of(seeds(1)))
    with refused(UsageError):
        run_inside(SweepCommand(sweep, slurm_rules(slurm_of())), slurm_of(), load([]).cluster, progress)
    folder.write_record(sweep.record)
    AllocationJob(slurm_of(), 1)(str(folder.allocation.path))
    assert (tmp_path / "asked").read_text().splitlines()[-1] == "requeue 7"


def room_of(slurm: SlurmSpec, folder: Path) -> AllocationRoom:
    """One node, for ever."""
    nodes = (AllocatedNode("n1", 8, 0, 0),)
    allocation = SlurmAllocation("12", "ours", 0, nodes, 1, True, float("inf"), float("inf"))
    executor = step.StepExecutor(allocation, slurm, 8, "x", lambda: folder, folder, False, 60)
    return AllocationRoom(executor, RUN_IN_SLURM, ask=lambda: allocation)


@pytest.mark.parametrize(("draining", "outcome"), [(("n1",), Outcome.OUT_OF_MEMORY), ((), Outcome.NODE_FAILED)])
def test_a_step_on_a_node_that_drains_has_ended_as_it_says(
    draining: tuple[str, ...],
    outcome: Outcome,
    folder: SweepFolder,
    record_of: RecordOf,
    slurm_of: SlurmOf,
    slurm_submission: Callable[..., Submission],
    tools: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step, "SETTLING_SECONDS", {})
    monkeypatch.setattr(step, "DEFAULT_SETTLING_SECONDS", 0.0)
    tools(squeue="true")
    sweep = Sweep(folder, record_of(seeds(1)))
    room = room_of(slurm_of(), tmp_path)
    room.ask = lambda: replace(room.allocation, nodes=(), draining=frozenset(draining))
    room.read_trials(sweep)
    (trial,) = sweep.record.trials
    submission = slurm_submission("12.0", job_name="x-1", inside=SurroundingJob(job_id="12", job_name="ours"))
    write_submission(sweep.prepare(trial), submission)
    Path(submission.error_of(0)).write_text("slurmstepd: error: Detected 1 oom_kill event in StepId=12.0.\n")
    srun = subprocess.Popen(["/bin/false"])
    srun.wait()
    room.running[trial.trial_id] = step.RunningStep(trial, submission, StepPlacement(("n1",), (0,)), srun, 0.0)
    room.read_trials(sweep)
    assert sweep.read()[0].outcome is outcome


@pytest.mark.parametrize(
    ("entries", "outcome"), [((Cancelled(trial_id=None),), Outcome.CANCELLED), ((), Outcome.PREEMPTED)]
)
def test_trials_of_an_allocation_that_ends_with_its_cancelled_sweep_are_cancelled(
    entries: tuple[Cancelled, ...],
    outcome: Outcome,
    folder: SweepFolder,
    record_of: RecordOf,
    slurm_of: SlurmOf,
    slurm_submission: Callable[..., Submission],
    tmp_path: Path,
) -> None:
    sweep, room = Sweep(folder, record_of(seeds(1))), room_of(slurm_of(), tmp_path)
    (trial,) = sweep.record.trials
    submission = slurm_submission("12.0", job_name="x-1", inside=SurroundingJob(job_id="12", job_name="ours"))
    write_submission(sweep.prepare(trial), submission)
    srun = subprocess.Popen(["/bin/sleep", "60"])
    room.running[trial.trial_id] = step.RunningStep(trial, submission, StepPlacement(("n1",), (0,)), srun, 0.0)
    Journal(folder.journal).append(*entries)
    room.interrupt_all(sweep, "the allocation in which it ran was ended")
    assert sweep.read()[0].outcome is outcome
    assert srun.poll() is not None
