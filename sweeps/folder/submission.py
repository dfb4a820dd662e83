"""`submission.json`: which job works in a folder, and where that job writes its output.

The ends of the attempts before it are kept: they say how often a trial may be tried again, and which nodes fail.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from conf.plan.experiment import Experiment
from conf.types.schema import Count, Frozen
from train_core.trial.atomic import append_whole, stored_values, write_atomically
from train_core.trial.folder import Attempt, JobFolder, last_attempt
from train_core.trial.logs import tail
from train_core.trial.measurement import Fault, Measurement, Outcome


class ShapePart(Frozen):
    """The equal nodes of one cluster in a job over several types of devices."""

    cluster: str
    num_nodes: Count
    tasks_per_node: Count

    def __str__(self) -> str:
        return f"{self.num_nodes} x {self.tasks_per_node}"


class JobShape(Frozen):
    """Equal nodes with equal tasks. All elements of a job array have the same shape.

    Attributes:
        num_nodes: of all parts.
        tasks_per_node: of all nodes; where there are parts, on those that have most.
        uses_gpus: every device is a GPU; otherwise no GPU is asked for.
        devices_per_task: 1 where every rank is a task; all of the node's where a program starts its ranks itself.
        parts: of a mixed job, in rank order, one for each type of devices; such a job is no element of an array. Empty
            where all nodes are equal.
    """

    num_nodes: Count
    tasks_per_node: Count
    uses_gpus: bool
    devices_per_task: Count = 1
    parts: Annotated[tuple[ShapePart, ...], Field(strict=False)] = ()

    def __str__(self) -> str:
        return " + ".join(map(str, self.parts)) or f"{self.num_nodes} x {self.devices_per_node}"

    @property
    def devices_per_node(self) -> int:
        return self.tasks_per_node * self.devices_per_task


def shape_of(experiment: Experiment) -> JobShape:
    blocks = experiment.mixed or ()
    trainer, devices = experiment.trainer, experiment.tasks_per_node
    of_a_rank = trainer.is_own or trainer.start == "srun"
    return JobShape(
        num_nodes=experiment.num_nodes,
        tasks_per_node=devices if of_a_rank else 1,
        devices_per_task=1 if of_a_rank else devices,
        uses_gpus=experiment.cluster.device.kind == "gpu",
        parts=tuple(
            ShapePart(cluster=block.cluster.name, num_nodes=block.num_nodes, tasks_per_node=block.tasks_per_node)
            for block in blocks
        ),
    )


class SurroundingJob(Frozen):
    """The job inside which a step runs.

    Attributes:
        job_id: None from before Slurm is asked until its answer is on disk.
        job_name: its name in Slurm, which no other job has, if it was submitted by us.
    """

    job_id: str | None
    job_name: str


class Submission(Frozen):
    """One attempt at the work of a folder.

    Attributes:
        executor: `slurm`, `pbs` for another scheduler, or `local` for a process of `hostname`.
        job_id: Slurm's, with the array element (`12_3`) or the step (`12.3`); of a local job the process id of its
            supervisor. None from before Slurm is asked until its answer is on disk, or the step has begun.
        job_name: its name in Slurm, which no other job has; None for a local job.
        cluster: the Slurm cluster, by the name in its own configuration; None where `job_name` is, and where Slurm did
            not say.
        element: index in the job array; None where the job is not part of one.
        inside: the job in which it is a step; None where it is a job of its own.
        submitted: seconds since the epoch.
        output: the job's standard output and error; `%t` stands for the rank, `%j` for `job_id`.
        missing: since when squeue has not known the job, which the accounting calls live; None where it knows it.
        copied_from: the folder in which the job works, where this one is a copy of it; never written.
    """

    executor: Literal["slurm", "pbs", "local"]
    job_id: str | None
    job_name: str | None = None
    cluster: str | None = None
    element: Annotated[int, Field(ge=0)] | None = None
    inside: SurroundingJob | None = None
    hostname: str
    attempt: Count
    submitted: float
    shape: JobShape
    output: str
    error: str
    missing: float | None = None
    copied_from: Annotated[str | None, Field(exclude=True)] = None

    @property
    def queue_id(self) -> str | None:
        """The job that the queue knows: the one in which a step runs, else its own."""
        return self.inside.job_id if self.inside else self.job_id

    @property
    def queue_name(self) -> str | None:
        """The name of that job."""
        return self.inside.job_name if self.inside else self.job_name

    def output_of(self, rank: int) -> Path:
        return self._path(self.output, rank)

    def error_of(self, rank: int) -> Path:
        return self._path(self.error, rank)

    @property
    def script_error(self) -> Path:
        """The standard error of the job's script, in which its scheduler writes too; with Slurm it is rank 0's."""
        return Path(self.error.replace("_%t_log", "")) if self.executor == "pbs" else self.error_of(0)

    def adopted_by(self, master: str) -> Submission:
        """This submission with the number of the job that the queue knows. `master` is that of the whole array."""
        job_id = master if self.element is None else f"{master}_{self.element}"
        if self.inside:
            return self.model_copy(update={"inside": self.inside.model_copy(update={"job_id": job_id})})
        return self.model_copy(update={"job_id": job_id})

    def missing_since(self, time: float | None) -> Submission:
        return self if time == self.missing else self.model_copy(update={"missing": time})

    def _path(self, pattern: str, rank: int) -> Path:
        return Path(pattern.replace("%t", str(rank)).replace("%j", self.job_id or "%j"))


def new_submission(attempt: int, shape: JobShape, logs: Path, stem: str, **fields: Any) -> Submission:
    """A submission of now, from this machine unless a host is named, whose ranks' logs begin with the stem."""
    return Submission(
        **{"job_id": None, "hostname": socket.gethostname()} | fields,
        attempt=attempt,
        submitted=time.time(),
        shape=shape,
        output=str(logs / f"{stem}_%t_log.out"),
        error=str(logs / f"{stem}_%t_log.err"),
    )


def read_submission(folder: JobFolder) -> Submission | None:
    """The folder's submission; None without one, or when the file was damaged and has been put aside."""
    found = folder.read(Submission, folder.submission)
    original = _original_of(folder, found) if found is not None else None
    return found.model_copy(update={"copied_from": str(original)}) if found is not None and original else found


def _original_of(folder: JobFolder, submission: Submission) -> Path | None:
    """The folder that the job was submitted from and that still names it; None where that is this one, or is gone."""
    for there in places_at_submission(folder, submission):
        if stored_values(there.submission).get("submitted") == submission.submitted:
            with contextlib.suppress(OSError):
                return None if there.submission.samefile(folder.submission) else there.path
    return None


def places_at_submission(folder: JobFolder, submission: Submission) -> Iterator[JobFolder]:
    """Where the folder may have lain when its job was submitted; nothing where it lies there still."""
    path, home = folder.path.absolute(), submission.output.rsplit("/", 2)[0]  # the sweep's, or the job's own
    if not f"{path}/".startswith(f"{home}/"):
        for depth in range(MOST_BELOW_HOME + 1):
            yield JobFolder(Path(home, *path.parts[len(path.parts) - depth :]))


def write_submission(folder: JobFolder, submission: Submission) -> None:
    """Write it without waiting for the disk.

    If a power failure takes it, the trial is submitted again, and the job that it named finds no such submission and
    ends itself.
    """
    write_atomically(folder.submission, submission.model_dump_json(indent=1), durable=False)


MOST_BELOW_HOME = 2
"""A trial's folder is `trials/ID` of the sweep's, and a controller's is one below it."""

LOG_SUFFIXES = (".out", ".err", ".log")


def claim_of(folder: JobFolder, submission: Submission | None) -> Attempt | None:
    """The claim by which a rank took the folder for this attempt; None where none has.

    Until one does, the claim in the folder is an earlier attempt's, whose job was another one.
    """
    claimed = last_attempt(folder.claim)
    return claimed if submission is not None and claimed is not None and claimed.number == submission.attempt else None


def begun_at(folder: JobFolder, submission: Submission | None) -> float | None:
    """When a rank took the folder for this attempt, in seconds since the epoch; None where none has."""
    return None if claim_of(folder, submission) is None else folder.claim.stat().st_mtime


def log_of(
    folder: JobFolder, submission: Submission | None, failing_rank: int | None, *, of_program: bool
) -> Path | None:
    """The failing rank's output if there is one, else the newest log that says something.

    Of another program's training, the logs of ranks have its words. The others say how its job began and ended, and
    come last.
    """
    if submission and failing_rank is not None:
        for path in (folder.rank_log(failing_rank), submission.error_of(failing_rank)):
            if path.exists():
                return path
    # Until the job runs, its folder has no logs; what Slurm itself says is only in the output of the whole job.
    own = [submission.output_of(0), submission.error_of(0)] if submission else []
    logs = [path for path in (*folder.logs.glob("*"), *own) if path.suffix in LOG_SUFFIXES and path.exists()]
    spoken = [path for path in logs if path.stat().st_size]
    told = [path for path in spoken if path.name.startswith("rank-")] if of_program else []
    return max(told or spoken, key=lambda path: path.stat().st_mtime, default=None)


def last_line(log: Path | None) -> str:
    """The last line that is not empty. submitit's own remarks say nothing about the trial, and do not count."""
    lines = [line.strip() for line in tail(log).splitlines()] if log else []
    return next((line for line in reversed(lines) if line and not line.startswith("submitit ")), "")


class EndedAttempt(Frozen):
    """One line of `attempts.jsonl`: how an attempt ended that brought no result.

    Attributes:
        number: of the attempt; 1 for the first.
        nodes: those that may be to blame.
        ended: seconds since the epoch.
    """

    number: Count
    outcome: Annotated[Outcome, Field(strict=False)]
    fault: Annotated[Fault, Field(strict=False)] | None
    nodes: Annotated[tuple[str, ...], Field(strict=False)]
    cause: str
    ended: float


def ended_attempt(number: int, measurement: Measurement) -> EndedAttempt:
    return EndedAttempt(
        number=number,
        outcome=measurement.outcome,
        fault=measurement.why,
        nodes=measurement.nodes,
        cause=measurement.cause,
        ended=measurement.ended,
    )


def keep_attempt(folder: JobFolder, attempt: EndedAttempt) -> None:
    """Write it down, unless whoever was killed while doing so has come so far."""
    if attempt.number not in (known.number for known in read_attempts(folder)):
        append_whole(folder.attempts, attempt.model_dump_json() + "\n")


def read_attempts(folder: JobFolder) -> tuple[EndedAttempt, ...]:
    """The attempts before the present one, the earliest first; a damaged line is left out.

    Raises UsageError where the file may not be read.
    """
    lines = (folder.content(folder.attempts) or b"").splitlines()
    return tuple(attempt for line in lines if (attempt := _parse(line)))


def _parse(line: bytes) -> EndedAttempt | None:
    try:
        return EndedAttempt.model_validate_json(line)
    except ValidationError:
        return None
