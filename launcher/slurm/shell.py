"""What a person's shell says to Slurm's tools beside the configuration, by variables such as SBATCH_ACCOUNT.

sbatch takes such a variable before the lines of a script, and srun in the job before what sbatch was told. Here the
configuration comes first, and a variable counts where the configuration says nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from conf.types.sbatch_options import sbatch_table, srun_table
from conf.types.sites import SlurmSpec
from launcher.external_commands import without_job

WHAT_RUNS = frozenset({"dependency", "exclusive", "export", "kill-on-bad-exit", "overlap", "signal", "wait"})
"""Options by which srun's variables would change when and how long our tasks run, beside those of the table."""

CLUSTERS = "SLURM_CLUSTERS"
"""All tools of Slurm go by it, so that jobs are sought where they were submitted."""


class ShellOptions(NamedTuple):
    """The SBATCH_ variables of a shell.

    Attributes:
        counted: those that hold for jobs, with their values.
        ignored: those that do not.
        options: what the counted ones are as options of sbatch.
    """

    counted: Mapping[str, str]
    ignored: Mapping[str, str]
    options: Mapping[str, Any]


def shell_options(slurm: SlurmSpec, environment: Mapping[str, str] = os.environ) -> ShellOptions:
    """The variables that set options of sbatch, told apart by whether the configuration says otherwise."""
    table = sbatch_table()
    stated = {option for option, key in table.keys.items() if getattr(slurm, key) is not None}
    stated |= slurm.extra_sbatch.keys()
    stated |= {rival for option in stated for rival in table.rivals.get(option, ())}
    named = {name: table.option_of_variable(name) for name in environment if name.startswith("SBATCH_")}
    options = {name: option for name, option in named.items() if option is not None}
    # An empty one sets nothing but what has no value: `--qos` alone would be refused.
    telling = {name: option for name, option in options.items() if environment[name] or option in table.flags}
    counted = {name: option for name, option in telling.items() if option in table.heard - stated}
    return ShellOptions(
        counted={name: environment[name] for name in counted},
        ignored={name: environment[name] for name in options.keys() - counted.keys()},
        options={option: option in table.flags or environment[name] for name, option in counted.items()},
    )


def environment_of_sbatch(slurm: SlurmSpec) -> dict[str, str]:
    """This process's environment without what would change the job that is submitted, or the tasks in it."""
    ignored = shell_options(slurm).ignored
    kept = without_srun_requests(without_job(os.environ))
    return {name: value for name, value in kept.items() if name not in ignored}


def without_srun_requests(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that srun would take for a request about our tasks.

    How ranks are bound and started, such as SLURM_CPU_BIND and SLURM_MPI_TYPE, stays a site's and a person's choice.
    """
    table = srun_table()
    requests = table.keys.keys() | table.refused.keys() | table.devices | table.rivals.keys() | WHAT_RUNS
    return {
        name: value
        for name, value in environment.items()
        if name == CLUSTERS or name.startswith("SBATCH_") or table.option_of_variable(name) not in requests
    }


def shell_lines(slurm: SlurmSpec) -> list[str]:
    """Sentences about the SBATCH_ variables of this shell: which hold for jobs, and which do not."""
    if slurm.scheduler == "pbs":
        return []
    shell = shell_options(slurm)
    counted, ignored = (", ".join(f"{name}={each[name]}" for name in sorted(each)) for each in shell[:2])
    says = f"From your shell, {counted} holds for these jobs, as the configuration states nothing else."
    remedy = "To have a setting hold, state it under slurm."
    not_so = f"From your shell, {ignored} does not hold for these jobs: the configuration decides. {remedy}"
    return [says] * bool(counted) + [not_so] * bool(ignored)
