"""Hands trials, and a sweep's controller, to a PBS machine's qsub (`slurm.scheduler=pbs`), each as a job of its own."""

from __future__ import annotations

import secrets
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conf.errors import ConfigError, UsageError
from conf.types.sites import SlurmSpec
from conf.units import SECONDS_PER_MINUTE
from launcher.external_commands import ask
from launcher.job_payload import PBS_JOB, FolderWork
from launcher.slurm.executor import TOKEN, TOKEN_BYTES, SlurmJob, require_sbatch, words_of_task, write_work
from launcher.slurm.pbs import SUBMIT_HOST, ended_file, submit_host
from launcher.slurm.sbatch import SAVE_SECONDS, python_command, require_plain_path, setup_lines
from sweeps.folder.submission import JobShape, new_submission, write_submission
from train_core.process.machine import FIRST_PORT, NUM_PORTS
from train_core.trial.atomic import write_atomically

TOOLS = ("qsub", "qstat", "qdel")
UNUSED = ("qos", "constraint", "gpu_type")
"""Settings that have no place in a request to PBS."""

OWN_OPTIONS = {"q": "slurm.partition", "A": "slurm.account", "l": "slurm.pbs_resources"} | dict.fromkeys("NoerJIXz")
"""Options of qsub that stand in a key of their own, or follow from the trial, and what hides the number of the job."""


@dataclass(frozen=True)
class PbsExecutor:
    """Submits trials of a sweep, or its controller, each as a job, which PBS never requeues.

    Without the site's mpiexec, the script starts one process, which it warns before the walltime, as PBS does not.
    """

    slurm: SlurmSpec
    name: str
    code: Path
    logs: Path
    requeues: bool = False
    uses_mpiexec: bool = True

    def without_nodes(self, nodes: Sequence[str]) -> PbsExecutor:
        """The same executor: PBS has no option that leaves nodes out."""
        return self

    def text(self, shape: JobShape, num_folders: int) -> str:
        """Return the command and the script of one job. Needs no PBS."""
        name = f"{self.name}-{TOKEN}"
        command = shlex.join(self._command(name, shape))
        return f"# {command}\n{self._script(name, shape)}"

    def submit(self, function: SlurmJob, work: Sequence[FolderWork], shape: JobShape) -> str:
        """Submit a job in which every rank calls the function with the one folder, and return its id.

        Raises:
            UsageError: qsub refuses it.
            ConfigError: a setting has no place in PBS.
        """
        ((folder, attempt),) = work
        name = f"{self.name}-{secrets.token_hex(TOKEN_BYTES)}"
        require_plain_path(self.logs)
        command = self._command(name, shape)
        write_work(self._pickle(name), function, work)
        write_atomically(self.logs / f"{name}.sh", self._script(name, shape))
        intent = new_submission(attempt, shape, self.logs, name, executor="pbs", job_name=name, hostname=submit_host())
        # On disk before qsub is called, so that a submitter that dies leaves no job that nobody knows.
        write_submission(folder, intent)
        result = ask(*command, seconds=None)
        job_id = (result.stdout.split() or [""])[-1]
        if not result.ok or not job_id[:1].isdigit():
            folder.submission.unlink(missing_ok=True)
            remedy = "Look at the request with --dry-run, and correct the settings under slurm."
            raise UsageError(f"PBS refused the job: {result.complaint or 'qsub gave no reason'}", remedy)
        write_submission(folder, intent.adopted_by(job_id))
        return job_id

    def _command(self, name: str, shape: JobShape) -> list[str]:
        slurm = self.slurm
        for key in UNUSED:
            if (value := getattr(slurm, key)) is not None:
                raise ConfigError(f"slurm.{key}", value, "has no place in a request to PBS", f"Set slurm.{key}=null.")
        if shape.parts:
            raise ConfigError("mixed", str(shape), "PBS jobs have nodes of one type", "Use mixed=null.")
        hours, minutes = divmod(slurm.time_limit_minutes, 60)
        chunk = [f"select={shape.num_nodes}", f"mpiprocs={shape.tasks_per_node}"]
        if slurm.cpus_per_task:
            chunk.append(f"ncpus={slurm.cpus_per_task * shape.devices_per_node}")
        if shape.uses_gpus and slurm.gpu_request != "none":
            chunk.append(f"ngpus={shape.devices_per_node}")
        # All in one -l: of several, Slurm's wrapper takes the last one alone.
        resources = [":".join(chunk), "place=scatter", f"walltime={hours:02d}:{minutes:02d}:00", *slurm.pbs_resources]
        words = ["qsub", "-N", name, "-r", "n", "-l", ",".join(resources)]
        words += ["-o", str(self.logs / f"{name}.out"), "-e", str(self.logs / f"{name}.err")]
        words += ["-q", slurm.partition] if slurm.partition else []
        words += ["-A", slurm.account] if slurm.account else []
        for option, value in slurm.extra_sbatch.items():
            if option in OWN_OPTIONS:
                remedy = f"Use {own}." if (own := OWN_OPTIONS[option]) else "Leave it out."
                raise ConfigError(f"slurm.extra_sbatch.{option}", value, "cannot be set here", remedy)
            if value is not False:
                words += [f"-{option}"] if value is True else [f"-{option}", str(value)]
        return [*words, str(self.logs / f"{name}.sh")]

    def _script(self, name: str, shape: JobShape) -> str:
        """The job's script, which runs once, on the first node."""
        ranks = shape.num_nodes * shape.tasks_per_node
        task = shlex.join(words_of_task(self._pickle(name)))
        ended = shlex.quote(str(ended_file(self.logs, name)))
        return "\n".join(
            (
                "#!/bin/bash",
                *setup_lines(self.slurm, self.code),
                f"export {PBS_JOB}={shlex.quote(name)} WORLD_SIZE={ranks}",
                f"export {SUBMIT_HOST}={shlex.quote(submit_host())}",
                'export PBS_JOBID="${PBS_JOBID:-$SLURM_JOB_ID}" MASTER_ADDR="$(hostname)"',
                f'number="${{PBS_JOBID%%[!0-9]*}}"; export MASTER_PORT=$(({FIRST_PORT} + number % {NUM_PORTS}))',
                f"{self._starter(shape)} {python_command(self.slurm)} -u {task}",
                f'ended=$?; echo "$ended" > {ended}; exit "$ended"',
                "",
            )
        )

    def _starter(self, shape: JobShape) -> str:
        """The words before the Python of the ranks, or of the one process."""
        if not self.uses_mpiexec:
            seconds = self.slurm.time_limit_minutes * SECONDS_PER_MINUTE - SAVE_SECONDS
            # --foreground signals the process alone, and not the qstat that it may be waiting for.
            return f"RANK=0 timeout --foreground --preserve-status --signal=USR2 {seconds}"
        places = {"ranks": shape.num_nodes * shape.tasks_per_node, "ranks_per_node": shape.tasks_per_node}
        try:
            return self.slurm.pbs_mpiexec.format(**places)
        except (KeyError, IndexError, ValueError):
            problem, remedy = "has other fields than {ranks} and {ranks_per_node}", "Use these two alone."
            raise ConfigError("slurm.pbs_mpiexec", self.slurm.pbs_mpiexec, problem, remedy) from None

    def _pickle(self, name: str) -> Path:
        return self.logs / f"{name}.pkl"


def require_scheduler(slurm: SlurmSpec) -> None:
    """Refuse what is to be submitted where the commands of the scheduler are not."""
    if slurm.scheduler != "pbs":
        require_sbatch(slurm)
    elif missing := [name for name in TOOLS if not shutil.which(name)]:
        remedy = "Run this on a PBS login node, or leave out cluster=NAME to measure on this machine."
        raise UsageError(f"PBS was asked for, but there is no {missing[0]} on the PATH", remedy)
