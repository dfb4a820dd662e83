"""Jobs of this machine: how to start one through submitit, and how to find one that outlived its sweep."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from launcher.executor import Executor, FolderWork
from sweeps.folder.submission import JobShape, Submission, write_submission
from train_core.process.own_code import variables_of
from train_core.trial_folder import JobFolder

LocalJobFunction = Callable[[str, tuple[int, ...], float | None], object]
EXTRA_MINUTES = 10
"""The supervisor keeps the time limit. submitit's own comes so much later, for a supervisor that hangs."""

UNLIMITED_MINUTES = 60 * 24 * 365
"""submitit requires a time limit, so a year stands for none."""


def controller_of(submission: Submission) -> psutil.Process | None:
    """The process that submitit started for this job, if it still runs; a reused process id is not taken for it."""
    if submission.executor != "local" or submission.hostname != socket.gethostname():
        return None
    try:
        process = psutil.Process(int(submission.job_id or 0))
        if process.status() == psutil.STATUS_ZOMBIE or "submitit.local._local" not in process.cmdline():
            return None
        # A process with a reused id may be a job of submitit's too, but only ours names this folder.
        folder = Path(submission.output).parent
        return process if str(folder) in process.cmdline() else None
    except psutil.Error:
        return None


def is_running_here(folder: JobFolder, submission: Submission | None) -> bool:
    """True if a job works in the folder: it holds the folder's lock, or is starting and has not taken it yet."""
    return folder.is_running_here() or (submission is not None and controller_of(submission) is not None)


@dataclass
class LocalExecutor(Executor):
    """Submits jobs to this machine, as processes that outlive the one which started them.

    Attributes:
        code: the snapshot that the job runs.
        devices: their numbers among the visible ones; empty to compute on the CPU.
        process: that of the job which was submitted last.
    """

    code: Path
    devices: tuple[int, ...]
    time_limit_seconds: float | None
    process: subprocess.Popen[bytes] | None = None

    def submit(self, function: LocalJobFunction, work: Sequence[FolderWork], shape: JobShape) -> str:
        """Start the supervisor of the one folder, which gets the function's call, and return its process id."""
        (folder, attempt) = work[0]
        assert len(work) == 1, "this machine knows no job arrays"
        self.process = _start_controller(folder, self.code, self.devices, self.time_limit_seconds, function)
        job_id, logs = str(self.process.pid), folder.logs.absolute()
        submission = Submission(
            executor="local",
            job_id=job_id,
            hostname=socket.gethostname(),
            attempt=attempt,
            submitted=time.time(),
            shape=shape,
            output=str(logs / f"{job_id}_%t_log.out"),
            error=str(logs / f"{job_id}_%t_log.err"),
        )
        write_submission(folder, submission)
        return job_id


def _start_controller(
    folder: JobFolder,
    code: Path,
    devices: tuple[int, ...],
    time_limit_seconds: float | None,
    job: LocalJobFunction,
) -> subprocess.Popen[bytes]:
    import submitit
    from submitit.local.local import LocalJob

    class DetachedExecutor(submitit.LocalExecutor):
        """Starts each job in a session of its own, so that Ctrl-C reaches only the sweep, which ends its jobs in order.

        The job sees the devices that this process sees; submitit's own executor would hide them.
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

    python = shlex.join(["env", *(f"{name}={value}" for name, value in variables_of(code).items()), sys.executable])
    executor = DetachedExecutor(folder.logs.absolute(), max_num_timeout=0, python=python)
    minutes = time_limit_seconds / 60 + EXTRA_MINUTES if time_limit_seconds else UNLIMITED_MINUTES
    executor.update_parameters(timeout_min=minutes)
    executor.submit(job, str(folder.path.absolute()), devices, time_limit_seconds)
    return executor.process


def _controller_settings(command: str, minutes: float) -> dict[str, str]:
    """The environment variables by which submitit tells its controller what to run.

    They are private to submitit; `start_controller` in its `local.py` is where they come from.
    """
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
