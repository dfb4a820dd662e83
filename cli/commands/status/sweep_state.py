"""The state of a sweep: the lines that its journal adds to the table of its trials."""

from __future__ import annotations

from conf.units import SECONDS_PER_HOUR
from sweeps.folder.history import History
from sweeps.folder.journal import Journal
from sweeps.folder.submission import read_submission
from sweeps.sweep import Sweep
from train_core.trial_folder import JobFolder


def state_lines(sweep: Sweep) -> list[str]:
    """None of a sweep that was only submitted, and of which nothing else is known. Slurm is not asked."""
    journal = Journal(sweep.folder.journal)
    history = History.of(journal.read_new())
    lines: list[str] = []
    if history.is_cancelled:
        lines.append("Cancelled: nothing is started until `trisweep sweep` is given again.")
    elif history.is_paused:
        lines.append("Paused: nothing new is started until `trisweep resume`.")
    elif history.finished and history.asked:
        lines.append(f"Ended: {history.finished}.")
    controller = read_submission(JobFolder(sweep.folder.controller))
    if controller is not None and not (history.finished or history.is_cancelled):
        lines.append(f"Controller: job {controller.job_id or controller.job_name}; it goes on with the sweep.")
    if history.device_seconds:
        lines.append(f"Spent: {history.device_seconds / SECONDS_PER_HOUR:.3g} device-hours in trials that have ended.")
    if journal.damaged:
        numbers = ", ".join(map(str, journal.damaged))
        lines.append(f"{journal.path.name}: lines {numbers} cannot be read, and are passed over.")
    return lines
