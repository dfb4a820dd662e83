"""The Slurm job that carries a sweep out: its controller, or the allocation in which its trials are steps."""

from __future__ import annotations

from conf.errors import UsageError
from launcher.slurm.own_jobs import live_job
from sweeps.folder.history import History
from sweeps.trial import SweepFolder
from train_core.trial_folder import JobFolder

ENDING = "COMPLETING"
"""So Slurm shows a job whose processes end, or have ended: it looks at nothing any more."""


def carrying_job(folder: SweepFolder, wanted: JobFolder | None = None) -> str | None:
    """The id of the job that carries the sweep out, or will once it starts: it finds what the journal says by then.

    None where there is none. That of a cancelled sweep only ends, and so does one that Slurm is completing.

    Args:
        wanted: of the folder's two kinds of jobs, the one that the command is about.

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
            raise UsageError(f"{problem} carries the sweep out already", remedy)
        return job.job_id
    return None
