"""What executors are handed: the functions that jobs call, and the folders that they are called with.

An executor submits jobs, to Slurm, PBS or this machine, and returns as soon as every folder names its job. A function
is named where a job is submitted, and imported where the job runs. `rerun` hands what is here to the snapshot that a
trial ran, which looks for it under this module's name.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # every rank of every job waits for this module, and some ranks for nothing else
    from train_core.trial.folder import JobFolder


class FolderWork(NamedTuple):
    """A folder to work in, with the number of the coming attempt."""

    folder: JobFolder
    attempt: int


class ByName:
    """A function, known by its module and its name. It is called like the function itself.

    The module is imported only when the function is called. Whoever submits it therefore need not wait for what only
    the job needs, such as torch, and the job takes the function from its own snapshot of the code.
    """

    # No dataclass: those import Python's `inspect`, for which every rank would wait.
    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self, *arguments: object) -> object:
        return self.function(*arguments)

    @property
    def function(self) -> Callable[..., object]:
        return getattr(import_module(self.module), self.name)


RUN_IN_SLURM = ByName("launcher.job", "run_in_slurm")
RUN_ON_THIS_MACHINE = ByName("launcher.job", "run_on_this_machine")
CHECK_NODE_IN_SLURM = ByName("launcher.job", "check_node_in_slurm")
MEASURE_RATES_IN_SLURM = ByName("launcher.job", "measure_rates_in_slurm")
CONTROL_IN_SLURM = ByName("cli.controller", "run_in_slurm")

PREFLIGHT = "TRISWEEP_PREFLIGHT"
"""The variable by which a job of a trial knows that it is to look at its nodes first."""

REFUSES = "trisweep refuses: "
"""So begins the line in which a job says why it does not run what it finds."""

PBS_JOB = "TRISWEEP_PBS_JOB"
"""The variable by which a task knows that PBS started its job, and what it is called."""
