"""Jobs of this machine: start one through submitit, find one that outlived the sweep that started it."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from sweeps.submission import Submission, shape_of, write_submission
from sweeps.sweep import Sweep
from sweeps.trial import Trial
from train_core.trial_folder import TrialFolder

LocalJobFunction = Callable[[str, tuple[int, ...], float | None], object]
EXTRA_MINUTES = 10
"""The supervisor keeps the time limit; submitit's own is a second fence behind it."""

UNLIMITED_MINUTES = 60 * 24 * 365


def controller_of(submission: Submission) -> psutil.Process | None:
    """The process that submitit started for this job, if it still runs; a reused process id is not taken for it."""
    if submission.executor != "local" or submission.hostname != socket.gethostname():
        return None
    try:
        process = psutil.Process(int(submission.job_id or 0))
        if process.status() == psutil.STATUS_ZOMBIE or "submitit.local._local" not in process.cmdline():
            return None
        folder = Path(submission.output).parent
        return process if str(folder) in process.cmdline() else None
    except psutil.Error:
        return None


def is_running_here(folder: TrialFolder, submission: Submission | None) -> bool:
    """It holds its lock, or is still starting and has not taken it yet."""
    return folder.is_running_here() or (submission is not None and controller_of(submission) is not None)


def start_job(
    sweep: Sweep,
    trial: Trial,
    *,
    code: Path,
    devices: tuple[int, ...],
    time_limit_seconds: float | None,
    job: LocalJobFunction,
) -> subprocess.Popen[bytes]:
    """Start the supervisor of one trial and record it in the trial folder.

    Args:
        code: the snapshot that the job runs.
    """
    assert trial.experiment is not None
    attempt, lost_nodes = sweep.read_trial(trial).next_attempt
    trial_folder = sweep.prepare(trial)
    started = _submit(trial_folder, code, devices, time_limit_seconds, job)
    write_submission(
        trial_folder,
        Submission(
            executor="local",
            job_id=str(started.pid),
            hostname=socket.gethostname(),
            attempt=attempt,
            lost_nodes=lost_nodes,
            submitted=time.time(),
            shape=shape_of(trial.experiment),
            output=str(trial_folder.logs.absolute() / f"{started.pid}_%t_log.out"),
            error=str(trial_folder.logs.absolute() / f"{started.pid}_%t_log.err"),
        ),
    )
    return started


def _submit(
    folder: TrialFolder,
    code: Path,
    devices: tuple[int, ...],
    time_limit_seconds: float | None,
    job: LocalJobFunction,
) -> subprocess.Popen[bytes]:
    from submitit import LocalExecutor
    from submitit.local.local import LocalJob

    class DetachedExecutor(LocalExecutor):
        """Jobs in a session of their own: Ctrl-C reaches the sweep, which ends them in order. The devices that this
        process sees stay visible, where submitit would hide them.
        """

        def _submit_command(self, command: str) -> LocalJob[Any]:
            environment = {**os.environ, **_controller_settings(command, self.parameters["timeout_min"])}
            controller = [sys.executable, "-m", "submitit.local._local", str(self.folder)]
            with (self.folder / "supervisor.log").open("ab") as log:
                self.process = subprocess.Popen(
                    controller,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            return LocalJob(folder=self.folder, job_id=str(self.process.pid), process=self.process, tasks=[0])

    path = os.pathsep.join([str(code), *filter(None, [os.environ.get("PYTHONPATH")])])
    python = shlex.join(["env", f"PYTHONPATH={path}", "PYTHONSAFEPATH=1", sys.executable])
    executor = DetachedExecutor(folder.logs.absolute(), max_num_timeout=0, python=python)
    minutes = time_limit_seconds / 60 + EXTRA_MINUTES if time_limit_seconds else UNLIMITED_MINUTES
    executor.update_parameters(timeout_min=minutes)
    executor.submit(job, str(folder.path.absolute()), devices, time_limit_seconds)
    return executor.process


def _controller_settings(command: str, minutes: float) -> dict[str, str]:
    """How submitit tells its controller what to run."""
    return {
        "SUBMITIT_LOCAL_NTASKS": "1",
        "SUBMITIT_LOCAL_COMMAND": command,
        "SUBMITIT_LOCAL_TIMEOUT_S": str(int(60 * minutes)),
        "SUBMITIT_LOCAL_SIGNAL_DELAY_S": "0",
        "SUBMITIT_LOCAL_NODEID": "0",
        "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
        "SUBMITIT_STDERR_TO_STDOUT": "",
        "SUBMITIT_EXECUTOR": "local",
        "SUBMITIT_LOCAL_WITH_SHELL": "",
    }
