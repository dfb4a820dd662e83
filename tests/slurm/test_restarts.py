"""Slurm starts a job again: one that has completed, and one whose ranks outlived the daemon that should end them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from conf.types.sites import SlurmSpec
from launcher.cancel import cancel_sweep
from launcher.slurm.query import query_jobs
from launcher.slurm.reconcile import reconcile
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.launcher.points_alone import submit_points
from tests.slurm.conftest import WaitUntil
from train_core.trial.folder import Attempt, last_attempt
from train_core.trial.measurement import Outcome

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.usefixtures("slurm_cluster")]


def until(condition: Callable[[], object], sweep: Sweep, seconds: float = 120) -> None:
    """Wait, and where that is in vain say how the trials of the sweep stand."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(str([(at.name, at.scheduler_state, at.outcome, at.cause) for at in reconcile(sweep.read())]))
        time.sleep(0.2)


def processes_in_jobs() -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """Every process of this machine that a job of this test's cluster runs, with its environment."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            if environment.get("SLURM_CONF") == os.environ["SLURM_CONF"] and "SLURM_ARRAY_TASK_ID" in environment:
                yield process, environment


def outlive_daemons(sweep: Sweep, element: str) -> psutil.Process:
    """Kill the daemons that Slurm started for element N of the sweep's only array; its rank, which trains on."""
    script = f"{sweep.folder.submitit}/"
    found = [process for process, at in processes_in_jobs() if at["SLURM_ARRAY_TASK_ID"] == element]
    (rank,) = (each for each in found if each.name() != "srun" and script in " ".join(each.cmdline()))
    for process in found:
        parent = process.parent()
        if parent is not None and parent.name() == "slurmstepd":
            parent.kill()
    return rank


def test_a_completed_trial_keeps_its_result_and_ranks_that_outlived_their_job_stop(
    folder: SweepFolder,
    record_of: RecordOf,
    slurm: SlurmSpec,
    wait_until: WaitUntil,
) -> None:
    layout = {"parallel.world_size": 1}
    sweep = Sweep(folder, record_of([layout, layout | {"training.num_steps": 1_000_000}]))
    submit_points(sweep, slurm)
    completed, endless = sweep.read()
    until(lambda: completed.folder.measurement.exists() and endless.folder.metrics.exists(), sweep, 200)
    result = completed.folder.measurement.read_bytes()
    jobs = [each.job_id for each in sweep.read() if each.job_id]

    outlived = outlive_daemons(sweep, "1")
    for job_id in jobs:
        subprocess.run(["scontrol", "requeue", job_id], check=True)
    until(lambda: last_attempt(endless.folder.claim) == Attempt(1, 1), sweep, 90)
    until(lambda: not outlived.is_running(), sweep)
    until(lambda: query_jobs([jobs[0]])[jobs[0]].name == "COMPLETED", sweep, 90)
    assert completed.folder.measurement.read_bytes() == result
    assert endless.folder.read_failures() == []
    wait_until(sweep.folder, sweep.record, lambda states: states[1].num_steps_done > 1, 90)
    assert cancel_sweep(sweep) == 1
    states = wait_until(
        sweep.folder, sweep.record, lambda states: all(each.outcome and each.outcome.is_final for each in states), 60
    )
    assert [each.outcome for each in states] == [Outcome.COMPLETED, Outcome.CANCELLED]
