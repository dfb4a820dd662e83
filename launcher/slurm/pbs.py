"""A PBS machine (`slurm.scheduler=pbs`): how its jobs are submitted, one a trial, how they stand, and their end.

What a job itself knows of its end, its script writes beside its output, because PBS forgets a job at its end unless its
history is kept: a qstat that no longer shows a job tells nothing but that.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from conf.errors import ConfigError, UsageError
from conf.types.sites import SlurmSpec
from conf.units import SECONDS_PER_MINUTE
from launcher.external_commands import MANY_JOBS_SECONDS, ask
from launcher.job_payload import PBS_JOB, FolderWork
from launcher.slurm.executor import TOKEN, TOKEN_BYTES, SlurmJob, require_sbatch, words_of_task, write_work
from launcher.slurm.query import SlurmJobState, SlurmSilent, answer_of
from launcher.slurm.sbatch import SAVE_SECONDS, python_command, require_plain_path, setup_lines
from launcher.slurm.verdict import OUTCOME_OF_STATE, outcome_in_words, own_lines
from sweeps.folder.submission import JobShape, Submission, new_submission, write_submission
from train_core.process.machine import FIRST_PORT, NUM_PORTS
from train_core.trial.atomic import write_atomically
from train_core.trial.logs import tail
from train_core.trial.measurement import Outcome

LIVE = {
    **dict.fromkeys("QHWT", "PENDING"),
    **dict.fromkeys("RB", "RUNNING"),
    **dict.fromkeys("SU", "SUSPENDED"),
    "E": "COMPLETING",
}
"""Slurm's word for each of PBS' letters that is one of a job which has not ended."""

SUBMIT_HOST = "TRISWEEP_PBS_HOST"
"""The variable in which a job finds the login node from which it, or the job that submitted it, was submitted."""

WORDS_OF_PBS = (
    (re.compile(r"^=>> PBS: job killed: walltime \d+ exceeded", re.MULTILINE), Outcome.TIMED_OUT),
    (re.compile(r"^=>> PBS: job killed: (?:v|p)?mem \S+ exceeded", re.MULTILINE), Outcome.OUT_OF_MEMORY),
)
UNKNOWN_JOB = (153, 35)
"""Exit codes of qstat and qdel about a job that PBS does not know, or knows as ended: the last eight bits of its errors
15001 and 15139."""

FIELD = re.compile(r"^\s+(\w+) = (.*)$", re.MULTILINE)
WRAPPED = re.compile(r"\n\t(?![\w.]+ = )")
"""PBS breaks a long value, in the middle of a word, and goes on behind a tab. Slurm's own qstat has one before each
field."""


def ended_file(logs: Path, name: str) -> Path:
    """The file in which a job's script leaves its exit code."""
    return logs / f"{name}.ended"


def _deleted_file(logs: Path, name: str) -> Path:
    """The file that is there once we have called qdel for a job."""
    return logs / f"{name}.deleted"


def submit_host() -> str:
    """The login node that stands for this process: its own host, or the one from which its PBS job comes."""
    return os.environ.get(SUBMIT_HOST) or socket.gethostname()


def states_in_pbs(submissions: Sequence[Submission], patience: float) -> list[tuple[Submission, SlurmJobState | None]]:
    """How the job of each submission stands, in Slurm's words, with the number of one that had none yet.

    Raises:
        SlurmSilent: qstat does not answer.
    """
    if not submissions:
        return []
    # A submission without a number is one whose submitter died before qsub had answered: the name tells its job.
    ids = [each.job_id for each in submissions if each.job_id] if all(each.job_id for each in submissions) else []
    answer = answer_of(("qstat", "-f", *ids), patience)
    if answer.has_failed and not answer.said and answer.exit_code not in UNKNOWN_JOB:
        raise SlurmSilent
    shown = dict(_jobs(answer.said))
    states: list[tuple[Submission, SlurmJobState | None]] = []
    for each in submissions:
        job_id, fields = shown.get(each.job_name or "", ("", {}))
        own = each if each.job_id or not job_id else each.adopted_by(job_id)
        name = LIVE.get(fields.get("job_state", ""))
        state = SlurmJobState(name) if name else _end_of(own) if own.job_id else None
        # `node1/0*4+node2/0*4`, in which a node may stand as often as it has cores.
        hosts = dict.fromkeys(part.split("/")[0] for part in fields.get("exec_host", "").split("+"))
        states.append((own, state and state._replace(nodes=",".join(hosts))))
    return states


def _jobs(text: str) -> Iterator[tuple[str, tuple[str, dict[str, str]]]]:
    """The jobs of `qstat -f` by their name and that of their output: number and fields.

    A number alone may since be another job's, and anybody may change the name of a job of theirs.
    """
    whole = WRAPPED.sub("", text)
    for block in re.split(r"^Job Id:\s*", whole, flags=re.MULTILINE)[1:]:
        fields = dict(FIELD.findall(block))
        if "Job_Name" in fields:
            for name in (fields["Job_Name"], Path(fields.get("Output_Path", "")).stem):
                yield name, (block.split()[0], fields)


def _end_of(submission: Submission) -> SlurmJobState | None:
    """The end of a job that PBS shows no more, from what lies beside its output; None where nothing does yet."""
    logs, name = Path(submission.output).parent, submission.job_name or ""
    log, ended = own_lines(tail(submission.script_error)), ended_file(logs, name)
    outcome = next((end for words, end in WORDS_OF_PBS if words.search(log)), None) or outcome_in_words(log)
    if outcome is not None:
        return SlurmJobState(next(state for state, end in OUTCOME_OF_STATE.items() if end is outcome))
    if ended.exists():
        state = "COMPLETED" if ended.read_text().strip() == "0" else "FAILED"
        return SlurmJobState(state, ended=ended.stat().st_mtime)
    return SlurmJobState("CANCELLED") if _deleted_file(logs, name).exists() else None


def delete_jobs(submissions: Sequence[Submission]) -> None:
    """Have PBS end these jobs; raises UsageError where qdel fails."""
    if not submissions:
        return
    for each in submissions:
        _deleted_file(Path(each.output).parent, each.job_name or "").touch()
    result = ask("qdel", *(each.job_id or "" for each in submissions), seconds=MANY_JOBS_SECONDS)
    if not result.ok and result.exit_code not in UNKNOWN_JOB:
        raise UsageError(f"qdel failed: {result.complaint}", "Delete the jobs by hand.")


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
            for path in (folder.submission, self._pickle(name), self.logs / f"{name}.sh"):
                path.unlink(missing_ok=True)
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
