"""`submission.json`: which job works in a folder, and where that job writes its output."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from conf.experiment import Experiment
from conf.schema import Count, Frozen
from train_core.trial_folder import JobFolder
from train_core.whole_files import write_atomically


class JobShape(Frozen):
    """One task per device, on equal nodes. All elements of a job array have the same shape.

    Attributes:
        uses_gpus: the tasks need a GPU each; otherwise no GPU is asked for.
    """

    num_nodes: Count
    tasks_per_node: Count
    uses_gpus: bool

    def __str__(self) -> str:
        return f"{self.num_nodes} x {self.tasks_per_node}"


def shape_of(experiment: Experiment) -> JobShape:
    return JobShape(
        num_nodes=experiment.num_nodes,
        tasks_per_node=experiment.tasks_per_node,
        uses_gpus=experiment.cluster.device.kind == "gpu",
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
        executor: `slurm`, or `local` for a process of `hostname`.
        job_id: Slurm's, with the array element (`12_3`) or the step (`12.3`); of a local job the process id of its
            supervisor. None from before Slurm is asked until its answer is on disk, or the step has begun.
        job_name: its name in Slurm, which no other job has; None for a local job, and for one of an earlier version.
        cluster: the Slurm cluster, by the name in its own configuration; None where `job_name` is, and where Slurm did
            not say.
        element: index in the job array; None where the job is not part of one.
        inside: the job in which it is a step; None where it is a job of its own.
        attempt: 1 for the first.
        lost_nodes: earlier attempts that ended because a node failed.
        submitted: seconds since the epoch.
        output: the job's standard output and error; `%t` stands for the rank, `%j` for `job_id`.
    """

    executor: Literal["slurm", "local"]
    job_id: str | None
    job_name: str | None = None
    cluster: str | None = None
    element: Annotated[int, Field(ge=0)] | None = None
    inside: SurroundingJob | None = None
    hostname: str
    attempt: Count
    lost_nodes: Annotated[int, Field(ge=0)]
    submitted: float
    shape: JobShape
    output: str
    error: str

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

    def adopted_by(self, master: str) -> Submission:
        """This submission with the number of the job that the queue knows. `master` is that of the whole array."""
        job_id = master if self.element is None else f"{master}_{self.element}"
        if self.inside:
            return self.model_copy(update={"inside": self.inside.model_copy(update={"job_id": job_id})})
        return self.model_copy(update={"job_id": job_id})

    def _path(self, pattern: str, rank: int) -> Path:
        return Path(pattern.replace("%t", str(rank)).replace("%j", self.job_id or "%j"))


def read_submission(folder: JobFolder) -> Submission | None:
    """The folder's submission.

    None when nothing was ever submitted, or when the file was damaged and has been put aside.
    """
    return folder.read(Submission, folder.submission)


def write_submission(folder: JobFolder, submission: Submission) -> None:
    """Write it without waiting for the disk.

    If a power failure takes it, the trial is submitted again, and the job that it named finds no such submission and
    ends itself.
    """
    write_atomically(folder.submission, submission.model_dump_json(indent=1), durable=False)
