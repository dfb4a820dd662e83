"""What is used of submitit beyond its interface. It was tried with 1.5.2, 1.5.3 and 1.5.4; another may name it anew.

The text that it writes for sbatch, and its controller: the process that runs one job on this machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # who only looks for its processes need not wait for it
    from submitit.local.local import LocalJob

CONTROLLER = "submitit.local._local"
"""The module that a controller runs, by which its process is known."""


def sbatch_string(command: str, logs: Path, map_count: int | None, parameters: Mapping[str, Any]) -> str:
    """The text that submitit gives to sbatch, for an array of `map_count` jobs or for one job."""
    from submitit.slurm.slurm import _make_sbatch_string

    return str(_make_sbatch_string(command=command, folder=logs, **parameters, map_count=map_count))


def sbatch_names() -> frozenset[str]:
    """The options of sbatch that submitit has arguments for, as it spells them."""
    from submitit.slurm.slurm import _get_default_parameters

    return frozenset(_get_default_parameters())


def start_controller(logs: Path, python: str, minutes: float, call: tuple[Any, ...]) -> subprocess.Popen[bytes]:
    """Start the process that runs a function with its arguments; it outlives this one.

    It has a session of its own, so that Ctrl-C reaches only the sweep, which ends its jobs in order. The job sees the
    devices that this process sees; submitit's own executor would hide them.

    Args:
        python: the shell's words for the interpreter of the job.
        minutes: after which submitit ends it.
    """
    import submitit
    from submitit.local.local import LocalJob

    class DetachedExecutor(submitit.LocalExecutor):
        def _submit_command(self, command: str) -> LocalJob[Any]:
            with (self.folder / "supervisor.log").open("ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", CONTROLLER, str(self.folder)],
                    env={**os.environ, **_controller_settings(command, self.parameters["timeout_min"])},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            return LocalJob(folder=self.folder, job_id=str(self.process.pid), process=self.process, tasks=[0])

    executor = DetachedExecutor(logs, max_num_timeout=0, python=python)
    executor.update_parameters(timeout_min=minutes)
    executor.submit(*call)
    return executor.process


def _controller_settings(command: str, minutes: float) -> dict[str, str]:
    """The variables that tell a controller what to run. Source: `start_controller` in submitit's `local.py`."""
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
