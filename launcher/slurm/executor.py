"""Hands a function, and the folders that it is to work in, to sbatch. Nothing is lost if this process dies on the way.

Every folder gets its `submission.json` first, with the name that the job will have; the name ends with a token that no
other job has. The job's script has it too, and so has the file that tells its tasks what to do: whatever Slurm calls
the job later, a job knows by that file that a folder is its own, and others know it by its script.

A job over several types of devices is one of Slurm's heterogeneous jobs, which submitit cannot write. The options of
each component are those that it writes for a job of that shape alone. What was found on Slurm 22.05: ranks are numbered
through all components (SLURM_PROCID), which `%t` of srun's file names and the tasks in srun's messages are not; and
`%j` is the number of the component, not of the job. The script therefore says after a failed step which ranks were
where.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from conf.errors import TrisweepError, UsageError
from conf.private_files import read_own, require_own_folders
from conf.types.sites import SlurmSpec
from launcher.control.workplace import Unanswered
from launcher.external_commands import ask
from launcher.job_payload import FolderWork
from launcher.slurm.cluster import this_cluster
from launcher.slurm.query import SlurmSilent, query_named
from launcher.slurm.sbatch import option_lines, python_command, require_plain_path, sbatch_parameters, sbatch_text
from launcher.slurm.shell import environment_of_sbatch
from sweeps.folder.submission import JobShape, Submission, new_submission, write_submission
from train_core.trial.atomic import replacing

SlurmJob = Callable[[str], object]
TOKEN, TOKEN_BYTES = "TOKEN", 4
SHA256 = "SHA256"
"""`TOKEN` and `SHA256` stand for the random token and a checksum where the text of a job is only shown."""

TOO_MANY_JOBS = re.compile(r"SubmitJobs?(Per\w+)?Limit|temporarily unable to accept job")
"""Slurm's words for a limit on how many jobs may be queued at once."""

NO_ANSWER = re.compile(r"Socket timed out|Unable to contact slurm controller")
"""sbatch's words where slurmctld was not there, or too busy to answer: the request itself may be right."""

SUBMITTED = re.compile(r"Submitted batch job (\d+)")


class TooManyJobs(UsageError):
    """Slurm refused the jobs only because too many are queued; fewer, or the same ones later, it may accept."""


@dataclass(frozen=True)
class SlurmExecutor:
    """Submits jobs of one sweep, one training or one calibration.

    Attributes:
        name: of the jobs, before the token.
        requeues: a job is warned before its time limit, and saves and requeues itself.
        uses_srun: every task of the job runs the function; else its batch script does so once.
    """

    slurm: SlurmSpec
    name: str
    code: Path
    logs: Path
    requeues: bool = False
    uses_srun: bool = True

    def without_nodes(self, nodes: Sequence[str]) -> SlurmExecutor:
        """The same executor, whose jobs are not given these nodes, nor those that the site leaves out."""
        if not nodes:
            return self
        options = self.slurm.extra_sbatch
        # sbatch goes by the last option of a name, so that the site's nodes and ours have to be in one.
        named = [str(options["exclude"])] if "exclude" in options else []
        extra = options | {"exclude": ",".join([*named, *nodes])}
        return replace(self, slurm=self.slurm.model_copy(update={"extra_sbatch": extra}))

    def text(self, shape: JobShape, num_folders: int) -> str:
        """Return what sbatch gets for one job array, or for one job if there is a single folder. Needs no Slurm."""
        return self._text(f"{self.name}-{TOKEN}", shape, num_folders)

    def _text(self, job_name: str, shape: JobShape, num_folders: int) -> str:
        if shape.parts:
            return self._hetjob_text(job_name, shape)
        return sbatch_text(self._parameters(job_name, shape), self.logs, num_folders, self._command(job_name))

    def _hetjob_text(self, job_name: str, shape: JobShape) -> str:
        """The text for sbatch of one job over several types of devices."""
        require_plain_path(self.logs)
        command = self._command(job_name)
        components: list[str] = []
        steps: list[str] = []
        setup: list[str] = []
        files = f'{shlex.quote(str(self.logs))}/"$SLURM_JOB_ID"'
        for group, part in enumerate(shape.parts):
            alone = JobShape(num_nodes=part.num_nodes, tasks_per_node=part.tasks_per_node, uses_gpus=shape.uses_gpus)
            own = replace(self, slurm=self.slurm.on(part.cluster))._parameters(job_name, alone)
            components.append("\n".join(option_lines(sbatch_text(own, self.logs, 1, command))))
            # The script of a heterogeneous job runs once, on the first node of the first component.
            setup = setup or own["setup"]
            args = shlex.join([f"--het-group={group}", "--unbuffered", *own["srun_args"]])
            steps.append(f"{args} bash -c {shlex.quote(INTO_OWN_FILES)} {files} {command}")
        return "\n".join(
            [
                "#!/bin/bash\n\n# Parameters, of one component after the other",
                "\n#SBATCH hetjob\n".join(components),
                "\n# setup",
                *setup,
                "\n# command",
                "srun " + " \\\n  : ".join(steps),
                *_first_rank_lines(shape),
                "",
            ]
        )

    def _parameters(self, job_name: str, shape: JobShape) -> dict[str, Any]:
        requeues, own = self.requeues, {} if self.uses_srun else {"use_srun": False}
        return sbatch_parameters(self.slurm, shape, self.code, job_name, requeues=requeues) | own

    def _command(self, job_name: str) -> str:
        return f"{python_command(self.slurm)} -u {shlex.join(words_of_task(self._pickle(job_name)))}"

    def submit(self, function: SlurmJob, work: Sequence[FolderWork], shape: JobShape) -> str:
        """Submit one job array in which every task of element i calls the function with folder i, and return its id.

        Raises:
            TooManyJobs: Slurm takes no more jobs now; nothing was submitted.
            UsageError: there is no sbatch here, Slurm refuses the request, or it does not say whether it took it.
        """
        # No other job ever has this name. A number says less: Slurm gives it out again once it has lost its memory.
        job_name = f"{self.name}-{secrets.token_hex(TOKEN_BYTES)}"
        assert not shape.parts or len(work) == 1, "a heterogeneous job cannot be an array"
        # They are on disk before sbatch is called, so that a submitter that dies leaves no job that nobody knows.
        intents, script = self._intents(job_name, work, shape), self.logs / f"{job_name}.sh"
        write_work(self._pickle(job_name), function, work)
        try:
            script.write_text(self._text(job_name, shape, len(work)))
            for (folder, _), intent in zip(work, intents, strict=True):
                write_submission(folder, intent)
            job_id = self._sbatch(job_name, script)
        except Unanswered:
            # The jobs may run all the same, so whatever they need stays.
            raise
        except TrisweepError:
            # No job runs, so nothing may look as if one did.
            for path in (script, self._pickle(job_name), *(folder.submission for folder, _ in work)):
                path.unlink(missing_ok=True)
            raise
        script.rename(self.logs / f"{job_id}_submission.sh")  # so submitit calls its own
        for (folder, _), intent in zip(work, intents, strict=True):
            write_submission(folder, intent.adopted_by(job_id))
        return job_id

    def _sbatch(self, job_name: str, script: Path) -> str:
        """The id of the job, or of the array, of this script."""
        result = ask("sbatch", str(script), seconds=None, environment=environment_of_sbatch(self.slurm))
        submitted = SUBMITTED.search(result.stdout)
        if result.ok and submitted is not None:
            return submitted.group(1)
        return _find_accepted_job(job_name, result.complaint or "sbatch gave no reason")

    def _pickle(self, job_name: str) -> Path:
        return self.logs / f"{job_name}.pkl"

    def _intents(self, job_name: str, work: Sequence[FolderWork], shape: JobShape) -> list[Submission]:
        named = partial(new_submission, executor="slurm", job_name=job_name, cluster=this_cluster().name)
        elements = range(len(work)) if len(work) > 1 else [None]
        pairs = zip(work, elements, strict=True)
        return [named(each.attempt, shape, self.logs, "%j", element=element) for each, element in pairs]


def write_work(path: Path, function: SlurmJob, work: Sequence[FolderWork]) -> None:
    """Write the file that tells a job's tasks which function to call, with which folders.

    Raises:
        UsageError: others may write there; what a job unpickles can run any program.
    """
    import cloudpickle

    path.parent.mkdir(parents=True, exist_ok=True)
    require_own_folders(path.parent)
    with replacing(path) as file:
        cloudpickle.dump((function, [str(folder.path.absolute()) for folder, _ in work]), file)
    read_own(path)  # what the job would refuse is refused here


def words_of_task(work: Path) -> list[str]:
    """Return the words after `python` that run a file naming a function and its folders, with its checksum."""
    sha256 = hashlib.sha256(work.read_bytes()).hexdigest() if work.exists() else SHA256
    return ["-m", "launcher.slurm.task", str(work), sha256]


def require_sbatch(slurm: SlurmSpec) -> None:
    """Raises UsageError where there is no Slurm here, or jobs go to PBS: only a sweep's trials and controller do."""
    if slurm.scheduler == "pbs":
        problem = "slurm.scheduler = pbs: only the trials of a sweep and its controller are submitted through PBS"
        raise UsageError(problem, "Use launcher=jobs, and measure or train longer by hand.")
    if missing := [name for name in ("sbatch", "srun") if not shutil.which(name)]:
        remedy = "Run this on a Slurm login node, or leave out cluster=NAME to measure on this machine."
        raise UsageError(f"Slurm was asked for, but there is no {missing[0]} on the PATH", remedy)


def _find_accepted_job(job_name: str, said: str) -> str:
    """The id of a job whose answer was lost on its way: a complaint does not yet mean a refusal.

    Raises:
        TooManyJobs, UsageError: it was refused.
        Unanswered: Slurm does not say.
    """
    try:
        jobs = query_named([job_name])
    except SlurmSilent:
        jobs = None
    if jobs:
        # The elements of an array are called by its number and their own.
        return next(iter(jobs)).split("_")[0]
    if jobs is None or NO_ANSWER.search(said):
        problem = f"Slurm did not say whether it took the job {job_name} ({said})"
        raise Unanswered(problem, "Give the same command again later: it asks Slurm for this job first.")
    if TOO_MANY_JOBS.search(said):
        raise TooManyJobs(f"Slurm takes no more jobs now: {said}", "Give the same command again when some have ended.")
    remedy = "Look at the request with --dry-run, and correct the settings under slurm."
    raise UsageError(f"Slurm refused the job: {said}", remedy)


# `exec` leaves nothing between Slurm and the rank, so that signals reach the rank alone.
INTO_OWN_FILES = 'exec "$@" >>"$0_${SLURM_PROCID}_log.out" 2>>"$0_${SLURM_PROCID}_log.err"'


def _first_rank_lines(shape: JobShape) -> list[str]:
    """Shell lines after the step of a heterogeneous job: if it failed they name the nodes; they end as it did."""
    sizes = [part.num_nodes * part.tasks_per_node for part in shape.parts]
    # The step's status comes first, because the next command of the script sets another.
    lines = ["ended=$?", 'if [ "$ended" -ne 0 ]; then']
    for group, first in enumerate([0, *accumulate(sizes)][:-1]):
        lines.append(f'  echo "trisweep: ranks from {first} on are those of $SLURM_JOB_NODELIST_HET_GROUP_{group}" >&2')
    return [*lines, "fi", 'exit "$ended"']
