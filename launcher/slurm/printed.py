"""The file for sbatch of a command that somebody starts by hand: what a trial's job would ask for, and no trial."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from conf.errors import ConfigError
from conf.plan.experiment import Experiment
from conf.types.sites import SlurmSpec
from launcher.slurm.executor import option_lines
from launcher.slurm.sbatch import container_words, sbatch_parameters, sbatch_text, setup_lines
from sweeps.folder.submission import shape_of

OF_TRIALS = ("#SBATCH --output=", "#SBATCH --error=", "#SBATCH --open-mode=", "#SBATCH --signal=USR2@0")
"""Options for what follows trials; of a script of its own, Slurm writes the output beside it."""

MEETING = (
    'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
    "port=$((20000 + SLURM_JOB_ID % 20000))",
)
OF_A_TASK = {
    "torchrun": "export MASTER_ADDR=$1 MASTER_PORT=$2 NODE_RANK=$SLURM_NODEID",
    "srun": "export MASTER_ADDR=$1 MASTER_PORT=$2"
    " RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS",
    "once": "export MASTER_ADDR=$1 MASTER_PORT=$2",
}
"""What each task that srun starts exports, by who starts the program's processes."""
ONCE = ("--nodes=1", "--ntasks=1", "--overlap")
"""Options of srun for a program that starts its processes on all nodes itself, by steps of its own perhaps."""


def job_script(
    slurm: SlurmSpec, experiment: Experiment, before: Sequence[str], command: Sequence[str]
) -> Iterator[str]:
    """The lines of a file for sbatch that runs the command where a trial of this experiment would run.

    Args:
        before: lines that the job's first node runs.
        command: lines that every task runs; they may hold the variables of `OF_A_TASK` and Slurm's.

    Raises:
        ConfigError: the settings are for another scheduler, or cannot be written into a script.
    """
    if slurm.scheduler != "slurm":
        remedy = "Leave --sbatch out, and put the command into a job of your own."
        raise ConfigError("slurm.scheduler", slurm.scheduler, "takes no file for sbatch", remedy)
    trainer = experiment.trainer
    parameters = sbatch_parameters(slurm, shape_of(experiment), None, f"{trainer.name}-{experiment.model.name}")
    options = option_lines(sbatch_text(parameters, Path(), 1, "true"))
    once = ONCE if trainer.start == "once" else ()
    step = shlex.join(["srun", *once, "--unbuffered", *parameters["srun_args"], *container_words(slurm)])
    yield "#!/bin/bash"
    yield from (line for line in options if not line.startswith(OF_TRIALS))
    yield "#SBATCH --output=%x-%j.out"
    yield from setup_lines(slurm, None)
    yield from before
    yield from MEETING
    yield "read -r -d '' train <<'EACH_TASK'"
    yield from (OF_A_TASK[trainer.start], *command, "EACH_TASK")
    yield f'{step} bash -c "$train" train "$first" "$port"'
