"""The text of a heterogeneous job: a component for each type of devices of a mixed job, and one step over all of them.

submitit can write no such job. The options of each component are those that it writes for a job of that shape alone.
What was found on Slurm 22.05: ranks are numbered through all components (SLURM_PROCID), which `%t` of srun's file names
and the tasks in srun's messages are not; and `%j` is the number of the component, not of the job.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from conf.sites import SlurmSpec
from launcher.slurm.node_names import first_rank_lines
from launcher.slurm.sbatch import require_plain_path, sbatch_parameters, sbatch_text
from sweeps.folder.submission import JobShape

# `exec` leaves nothing between Slurm and the rank, so that signals reach the rank alone.
INTO_OWN_FILES = 'exec "$@" >>"$0_${SLURM_PROCID}_log.out" 2>>"$0_${SLURM_PROCID}_log.err"'


def hetjob_text(
    slurm: SlurmSpec, shape: JobShape, code: Path, job_name: str, logs: Path, command: str, *, requeues: bool = False
) -> str:
    """The text for sbatch of one job, every task of which runs the shell command.

    Raises:
        ConfigError: a setting cannot be written into a script.
    """
    require_plain_path(logs)
    components: list[str] = []
    steps: list[str] = []
    setup: list[str] = []
    files = f'{shlex.quote(str(logs))}/"$SLURM_JOB_ID"'
    for group, part in enumerate(shape.parts):
        alone = JobShape(num_nodes=part.num_nodes, tasks_per_node=part.tasks_per_node, uses_gpus=shape.uses_gpus)
        parameters = sbatch_parameters(slurm.on(part.cluster), alone, code, job_name, requeues=requeues)
        components.append(_options(sbatch_text(parameters, logs, 1, command)))
        setup = setup or parameters["setup"]
        args = shlex.join([f"--het-group={group}", "--unbuffered", *parameters["srun_args"]])
        steps.append(f"{args} bash -c {shlex.quote(INTO_OWN_FILES)} {files} {command}")
    return "\n".join(
        [
            "#!/bin/bash",
            "",
            "# Parameters, of one component after the other",
            "\n#SBATCH hetjob\n".join(components),
            "",
            "# setup",
            *setup,
            "",
            "# command",
            "srun " + " \\\n  : ".join(steps),
            *first_rank_lines(shape),
            "",
        ]
    )


def _options(text: str) -> str:
    """The lines of options in the text of a job, which are the first lines of their kind."""
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("#SBATCH"))
    end = next(index for index in range(start, len(lines)) if not lines[index].startswith("#SBATCH"))
    return "\n".join(lines[start:end])
