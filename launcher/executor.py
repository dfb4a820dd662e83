"""The interface to what runs jobs. An executor calls a function with folders, on Slurm or on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from sweeps.folder.submission import JobShape
from train_core.trial_folder import JobFolder


class Work(NamedTuple):
    """A folder to work in, with the number of the coming attempt."""

    folder: JobFolder
    attempt: int


class Executor(Protocol):
    """Submits jobs, after submitit's class of that name. It returns as soon as every folder names its job."""

    def submit(self, function: Callable[..., object], work: Sequence[Work], shape: JobShape) -> str:
        """Submit one job in which every folder gets one call of the function, and return the job's id.

        Raises:
            UsageError: the job was refused.
        """
