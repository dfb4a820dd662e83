"""The time that a training has waited or run."""

from __future__ import annotations

from sweeps.reading import Reading
from train_core.measurement import Outcome


def age_seconds(reading: Reading, now: float) -> float | None:
    """Seconds for which it has waited, or has run; of one that has ended, for which it ran. None before submission.

    Args:
        now: seconds since the epoch.
    """
    if reading.measurement is not None:
        return max(0.0, reading.measurement.ended - reading.measurement.started)
    if reading.submission is None:
        return None
    begun = reading.submission.submitted
    if reading.outcome is Outcome.RUNNING:
        begun = max(begun, _attempt_began(reading))
    return max(0.0, now - begun)


def _attempt_began(reading: Reading) -> float:
    """Return when Slurm last started the job, in the file system's time; 0.0 if no rank has taken the folder."""
    try:
        return reading.folder.claim.stat().st_mtime
    except OSError:
        return 0.0
