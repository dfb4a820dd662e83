"""The file in which a sweep notes which job is its allocation, so that any command finds that job again."""

from __future__ import annotations

from conf.errors import UsageError
from launcher.slurm.answers import FRESH, Patience
from launcher.slurm.own_jobs import JobStanding, standings
from launcher.slurm.query import SlurmSilent
from sweeps.folder.submission import read_submission
from sweeps.trial import SweepFolder
from train_core.trial_folder import JobFolder


def allocation_folder(folder: SweepFolder) -> JobFolder:
    return JobFolder(folder.path / "allocation")


def live_allocation(folder: SweepFolder, patience: Patience = FRESH) -> JobStanding | None:
    """The sweep's allocation, if it is queued or runs.

    Args:
        patience: how old Slurm's answer may be.

    Raises:
        UsageError: Slurm does not answer.
    """
    submission = read_submission(allocation_folder(folder))
    if submission is None:
        return None
    try:
        (standing,) = standings([submission], patience)
    except SlurmSilent:
        raise UsageError("Slurm does not answer", "Try again, on a machine where squeue works.") from None
    return standing if standing.is_live else None
