"""A budget is held against what Slurm charges: the starts of jobs, and each of their runs."""

from __future__ import annotations

import subprocess
import time

import pytest

from conf.compose.settings import UNLIMITED_BUDGET
from conf.types.sites import SlurmSpec
from launcher.control.conductor import Conductor
from launcher.control.rules import Budget, Rules
from launcher.slurm.executor import SlurmJob
from launcher.slurm.workplace import SlurmQueue
from sweeps.folder.journal import History
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from train_core.trial.measurement import Outcome

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.usefixtures("slurm_cluster")]
START_SECONDS, PATIENCE_SECONDS = 4, 120
DEVICE_HOURS = 150 / 3600
"""With a time limit of one minute, two trials of one device may be in flight at once."""


def make_job() -> SlurmJob:
    """A job that takes longer to start than to train. Defined here, so that it travels by value."""

    def job(folder: str) -> None:
        import time
        from pathlib import Path

        from train_core.job.failures import without_numbers
        from train_core.trial.folder import TrialFolder
        from train_core.trial.measurement import Outcome

        time.sleep(4)
        trial = TrialFolder(Path(folder))
        fingerprint = trial.read_experiment().fingerprint
        trial.write_measurement(without_numbers(fingerprint, Outcome.INFEASIBLE, "made up", time.time()))

    return job


def seconds_charged(names: set[str]) -> float:
    columns = ["--noheader", "--parsable2", "--allocations", "--duplicates", "--format=JobName,ElapsedRaw"]
    told = subprocess.run(["sacct", *columns, "--starttime=now-1hour"], capture_output=True, text=True, check=True)
    lines = (line.split("|") for line in told.stdout.splitlines())
    return sum(float(seconds or 0) for name, seconds in lines if name in names)


def test_starts_of_jobs_and_requeues_are_charged_as_slurm_charges_them(
    folder: SweepFolder, record_of: RecordOf, slurm: SlurmSpec
) -> None:
    folder.path.mkdir(parents=True)
    sweep = Sweep(folder, record_of([{"training.seed": seed} for seed in range(4)]))
    folder.write_record(sweep.record)
    quick = slurm.model_copy(update={"time_limit_minutes": 1})
    limits = UNLIMITED_BUDGET.model_copy(update={"device_hours": DEVICE_HOURS})
    conductor = Conductor(sweep, SlurmQueue(quick, make_job()), Rules(budget=Budget(limits, quick, 60.0)))
    jobs, is_requeued, deadline = set[str](), False, time.monotonic() + PATIENCE_SECONDS
    while not (step := conductor.advance()).finished and step.num_in_flight + step.num_waiting:
        assert time.monotonic() < deadline, step
        submissions = [each.submission for each in step.readings if each.submission]
        jobs |= {str(each.job_name) for each in submissions}
        running = [each.job_id for each in step.readings if each.outcome is Outcome.RUNNING]
        if running and not is_requeued:
            is_requeued = subprocess.run(["scontrol", "requeue", str(running[0])], check=False).returncode == 0
        time.sleep(0.3)
    assert is_requeued
    taken = seconds_charged(jobs)
    assert taken >= 4 * START_SECONDS
    assert History.kept_in(folder).device_seconds == pytest.approx(taken, abs=0.5)
    assert taken <= DEVICE_HOURS * 3600
