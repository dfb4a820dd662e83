"""The state of the job of each submission: Slurm's word if the job is ours, and no conclusion if it is another's.

A number alone names no job. Another cluster gives the same numbers to its own jobs, and a slurmctld that lost its
memory gives them out again. A job is ours where the cluster is that of the submission, and the job or its script has
the name that was written down, and where the folder is the one that it works in: in a copy the same file names the same
job. Slurm tells the script's name for good, whatever a person, or a site's own sbatch, calls the job.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from conf.errors import UsageError
from conf.nearest import listed
from conf.units import count_of
from launcher.external_commands import MANY_JOBS_SECONDS, ask, in_calls
from launcher.refused import PartlyRefused
from launcher.slurm.cluster import this_cluster
from launcher.slurm.pbs import delete_jobs, states_in_pbs, submit_host
from launcher.slurm.query import (
    FRESH,
    UNKNOWN_HERE,
    SlurmJobState,
    SlurmSilent,
    forget_answers,
    query_jobs,
    query_named,
)
from sweeps.folder.journal import History
from sweeps.folder.submission import Submission, read_submission, write_submission
from sweeps.trial import SweepFolder
from train_core.trial.folder import JobFolder

ENDING = "COMPLETING"
"""So Slurm shows a job whose processes end, or have ended: it looks at nothing any more."""

IN_BOOKS_SECONDS = 300.0
"""For so long a job counts that lives in the accounting and that squeue does not know, so that an answer that lacks it
for once ends nothing. squeue knows an ended job for that long, too, unless the site says otherwise (MinJobAge)."""


MOST_NAMED = 5


class JobStanding(NamedTuple):
    """The knowledge about the job of one submission.

    Attributes:
        submission: with the number of its job, if Slurm knew the job by its name, and since when it is missing.
        state: Slurm's word; None where it knows no such job.
        elsewhere: why this machine's Slurm cannot tell; empty where it can.
    """

    submission: Submission
    state: SlurmJobState | None
    elsewhere: str

    @property
    def is_live(self) -> bool:
        return self.state is not None and self.state.is_live

    @property
    def unsure(self) -> str:
        """The reason why nobody can say here how the job stands; empty if Slurm does."""
        return self.elsewhere or (self.state.cause if self.state else "")

    @property
    def is_unknown(self) -> bool:
        """The cluster that would have it has no such job."""
        return self.state is None and not self.elsewhere


class LiveJob(NamedTuple):
    """A job of ours that is queued or runs."""

    submission: Submission
    state: SlurmJobState

    @property
    def job_id(self) -> str:
        return self.submission.job_id or ""


def live_job(folder: JobFolder, patience: float = FRESH) -> LiveJob | None:
    """The job that works in this folder, queued or running; None where there is none.

    Args:
        patience: how old Slurm's answer may be, in seconds.

    Raises:
        UsageError: Slurm does not answer, or cannot know the last job here, so that a second one might join it.
    """
    submission = read_submission(folder)
    if submission is None or submission.executor == "local":
        return None
    try:
        (job,) = standings([submission], patience)
    except SlurmSilent:
        raise UsageError(f"Slurm does not say how job {submission.job_id} stands", "Try again in a minute.") from None
    if job.elsewhere:
        raise UsageError(f"{folder.path} has a job already, and {job.elsewhere}", "Give this command there.")
    if job.submission != submission:
        write_submission(folder, job.submission)
    return LiveJob(job.submission, job.state) if job.state is not None and job.state.is_live else None


def standings(submissions: Sequence[Submission], patience: float = FRESH) -> list[JobStanding]:
    """Return how the job of each submission stands, in their order; all must be submissions to Slurm or to PBS.

    Args:
        patience: how old the answer of either may be, in seconds.

    Raises:
        SlurmSilent: about some of the jobs nothing can be said now.
    """
    own = [each for each in submissions if not each.copied_from]
    in_slurm = iter(_standings_in_slurm([each for each in own if each.executor != "pbs"], patience))
    in_pbs = iter(
        JobStanding(each, state, "" if state else _why_elsewhere(each, None))
        for each, state in states_in_pbs([each for each in own if each.executor == "pbs"], patience)
    )
    of_a_copy = "its job works in {}, of which this folder is a copy"
    return [
        JobStanding(each, None, of_a_copy.format(each.copied_from))
        if each.copied_from
        else next(in_pbs if each.executor == "pbs" else in_slurm)
        for each in submissions
    ]


def _standings_in_slurm(submissions: Sequence[Submission], patience: float) -> list[JobStanding]:
    if not submissions:
        return []
    here = this_cluster().name
    # A submission without a number is one whose submitter died, or is still waiting, before sbatch had answered.
    unnumbered = (each.queue_name for each in submissions if each.queue_id is None and each.queue_name)
    with_ids = _add_job_ids(submissions, query_named(unnumbered, patience))
    states = query_jobs((each.queue_id for each in with_ids if each.queue_id), patience)
    # A number may be wrong, as where a file was restored from a copy: the name alone says which job is ours. That of a
    # person's own allocation may be the name of others, too.
    lost = [each for each in with_ids if _job_standing(each, states, here).state is None]
    strays = {each.job_name for each in lost if each.job_id and each.job_name and not each.inside}
    if named := query_named(strays, patience):
        with_ids, states = _add_job_ids(with_ids, named, of=strays), states | named
    return [_job_standing(submission, states, here) for submission in with_ids]


def _add_job_ids(
    submissions: Iterable[Submission], named: dict[str, SlurmJobState], of: Container[str | None] = ()
) -> list[Submission]:
    """The submissions with the numbers of the jobs of their names, where they have none or are among those in `of`."""
    # squeue shows an array element by element; a submission knows which element is its own.
    masters = {name: job_id.split("_")[0] for job_id, state in named.items() for name in state.names}
    return [
        each.adopted_by(masters[each.queue_name])
        if each.queue_name in masters and (each.queue_id is None or each.queue_name in of)
        else each
        for each in submissions
    ]


def _job_standing(submission: Submission, states: dict[str, SlurmJobState], here: str | None) -> JobStanding:
    state = states.get(submission.queue_id) if submission.queue_id else None
    if state is None or submission.queue_name not in state.names:
        return JobStanding(submission, None, _why_elsewhere(submission, here))
    if state.name != UNKNOWN_HERE:
        return JobStanding(submission.missing_since(None), state, "")
    now = time.time()
    missing = submission.missing_since(submission.missing or now)
    return JobStanding(missing, state if now - (missing.missing or now) < IN_BOOKS_SECONDS else None, "")


def _why_elsewhere(submission: Submission, here: str | None) -> str:
    """Return why it proves nothing that this machine's Slurm lacks the job; empty if it proves that there is none."""
    # Without a name for the cluster, the login node on which the job was submitted is the best witness.
    if submission.cluster is None:
        is_here = submission.hostname == submit_host()
        return "" if is_here else f"its job was submitted on {submission.hostname}, and is not known here"
    if submission.cluster == here:
        return ""
    what_it_asks = f"asks {here}" if here else "cannot ask it"
    return f"its job is one of the Slurm cluster {submission.cluster}, and this machine {what_it_asks}"


def own_job_id(environment: Mapping[str, str] = os.environ) -> str:
    """The job's number as squeue and submissions have it: every element of an array also has another of its own."""
    if "SLURM_ARRAY_JOB_ID" in environment:
        return f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    # A heterogeneous job goes by the number of its first component.
    return environment.get("SLURM_JOB_ID_HET_GROUP_0") or environment["SLURM_JOB_ID"]


def requeue() -> None:
    """Have Slurm run this job again; it goes on from what was saved."""
    # A site may forbid requeueing. Everything is saved by now, so a refusal is worth a line and is no failure.
    result = ask("scontrol", "requeue", own_job_id())
    if not result.ok:
        why = result.complaint or "it gave no reason"
        print(f"saved, but Slurm did not requeue the job ({why}); the command that submitted it goes on from there")


def carrying_job(folder: SweepFolder, wanted: JobFolder | None = None) -> str | None:
    """The id of the job that carries the sweep out, or will once it starts: it finds what the journal says by then.

    None where there is none. That of a cancelled sweep only ends, and so does one that Slurm is completing. Of the
    folder's two kinds of jobs one that is not wanted is refused.

    Raises:
        UsageError: Slurm does not answer, or cannot know the last such job; or it is one of the other kind.
    """
    if History.kept_in(folder).is_cancelled:
        return None
    for kind in (folder.controller, folder.allocation):
        job = live_job(kind)
        if job is None or job.state.name == ENDING:
            continue
        if wanted is not None and wanted is not kind:
            problem = f"Job {job.job_id}, of launcher={'jobs' if kind is folder.controller else 'allocation'},"
            remedy = "Let it end, or end it with `trisweep cancel`, and give the command again."
            raise UsageError(f"{problem} runs the sweep already", remedy)
        return job.job_id
    return None


def cancel_jobs(submissions: Sequence[Submission]) -> list[str]:
    """Cancel those of the Slurm jobs that are ours and live, and return their ids.

    Raises:
        UsageError: Slurm does not answer, or cannot know some of the jobs; those that it knows have been cancelled.
    """
    try:
        jobs = standings(submissions)
    except SlurmSilent:
        raise UsageError("Slurm does not answer", "Try again, on a machine where squeue works.") from None
    living = [job.submission for job in jobs if job.is_live and job.submission.job_id]
    # What can be cancelled is cancelled before anybody is told about the rest.
    complaints = [
        result.complaint
        for ids in in_calls([each.job_id or "" for each in living if each.executor != "pbs"])
        if not (result := ask("scancel", *ids, seconds=MANY_JOBS_SECONDS)).ok
    ]
    delete_jobs([each for each in living if each.executor == "pbs"])
    if living:
        forget_answers()
    left = _still_live(living) if complaints else []
    unsure = [job for job in jobs if job.unsure]
    not_ended = {*left, *(job.submission.job_id for job in unsure)}
    ended = [each.job_id or "" for each in living if each.job_id not in not_ended]
    kind = PartlyRefused if ended else UsageError
    done = f"{count_of(len(ended), 'job', 'was', 'were')} cancelled"
    if left:
        problem = f"{done}, and {listed(left, MOST_NAMED)} {'goes' if len(left) == 1 else 'go'} on: {complaints[0]}"
        raise kind(f"scancel failed: {problem}", "Cancel what is left by hand, or as its owner.")
    if unsure:
        which = "" if len(unsure) == 1 else "of the first, "
        others = f"{len(unsure)} {'was' if len(unsure) == 1 else 'were'} not: {which}{unsure[0].unsure}"
        where = "there" if unsure[0].elsewhere else "again in some minutes"
        raise kind(f"{done}, and {others}", f"Give the same command {where}.")
    return ended


def _still_live(jobs: Sequence[Submission]) -> list[str]:
    """The ids of those that scancel did not end; of all of them where Slurm does not say."""
    try:
        standing = standings(jobs)
    except SlurmSilent:
        return [each.job_id or "" for each in jobs]
    live = [each for each in standing if each.state is not None and each.is_live and each.state.name != ENDING]
    return [each.submission.job_id or "" for each in live]
