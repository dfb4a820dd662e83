"""A function that is named where a job is submitted, and imported where the job runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True)
class ByName:
    """A function, known by its module and its name. It is called like the function itself.

    The module is imported only when the function is called. Whoever submits it therefore need not wait for what only
    the job needs, such as torch, and the job takes the function from its own snapshot of the code.
    """

    module: str
    name: str

    def __call__(self, *arguments: object) -> object:
        return self.function(*arguments)

    @property
    def function(self) -> Callable[..., object]:
        function: Callable[..., object] = getattr(import_module(self.module), self.name)
        return function


RUN_IN_SLURM = ByName("launcher.job", "run_in_slurm")
RUN_ON_THIS_MACHINE = ByName("launcher.job", "run_on_this_machine")
CHECK_NODE_IN_SLURM = ByName("launcher.job", "check_node_in_slurm")
MEASURE_RATES_IN_SLURM = ByName("launcher.job", "measure_rates_in_slurm")
CONTROL_IN_SLURM = ByName("cli.controller", "run_in_slurm")
