"""A trial that runs as a step of an allocation: whether it has ended, and how to end it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from launcher.allocation.nodes import running_steps
from launcher.allocation.packing import Placement
from launcher.allocation.times import Expectation
from launcher.slurm.query import SlurmSilent
from launcher.slurm.silent_jobs import DEFAULT_SETTLING_SECONDS, SETTLING_SECONDS
from sweeps.folder.submission import Submission
from sweeps.trial import Trial

END_SECONDS = 40.0
"""Slurm kills a step that does not end by itself after its KillWait, which is 30 s by default."""


@dataclass
class Step:
    """Attributes:
    process: its srun; None of a step that an earlier controller started.
    began: by `time.monotonic`.
    ended: when that was seen.
    """

    trial: Trial
    submission: Submission
    placement: Placement
    process: subprocess.Popen[bytes] | None
    began: float
    ended: float | None = None

    def seconds_left(self, expected: Expectation) -> float:
        return max(0.0, expected.seconds(self.trial) - (time.monotonic() - self.began))

    @property
    def exit_code(self) -> int:
        return self.process.returncode if self.process else 1

    @property
    def has_ended(self) -> bool:
        """Whether its srun has; of a step without one, nobody knows that without asking Slurm."""
        return self.process is not None and self.process.poll() is not None

    @property
    def is_settled(self) -> bool:
        """Whether a result that it left would have appeared on a network file system by now."""
        assert self.ended is not None
        state = "COMPLETED" if self.exit_code == 0 else "FAILED"
        return time.monotonic() - self.ended >= SETTLING_SECONDS.get(state, DEFAULT_SETTLING_SECONDS)


def ended_among(steps: Mapping[str, Step], job_id: str) -> list[str]:
    """Those of the steps that have ended. Slurm is asked only where some have no srun of this process."""
    ended = [name for name, step in steps.items() if step.has_ended]
    adopted = {name: step for name, step in steps.items() if step.process is None}
    with suppress(SlurmSilent):
        alive = running_steps(job_id) if adopted else {}
        ended += [name for name, step in adopted.items() if step.submission.job_name not in alive]
    return ended


def end_all(steps: Sequence[Step]) -> None:
    """End the steps, and wait until they have ended."""
    for step in steps:
        if step.process is not None:
            step.process.terminate()  # srun kills the step's tasks
        elif step.submission.job_id:
            subprocess.run(["scancel", step.submission.job_id], capture_output=True, check=False)
    until = time.monotonic() + END_SECONDS
    for step in steps:
        with suppress(subprocess.TimeoutExpired):
            if step.process is not None:
                step.process.wait(max(0.0, until - time.monotonic()))
