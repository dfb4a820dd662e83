"""The output of a job: which log to look at first, and how it ends."""

from __future__ import annotations

from pathlib import Path

from sweeps.folder.submission import Submission
from train_core.trial_folder import JobFolder

LOG_SUFFIXES = (".out", ".err", ".log")
TAIL_BYTES = 65_536
"""Enough for the last traceback; a log may have gigabytes, and a status reads the logs of a whole sweep."""


def log_of(folder: JobFolder, submission: Submission | None, failing_rank: int | None) -> Path | None:
    """The failing rank's output if there is one, else the newest log that says something."""
    if submission and failing_rank is not None:
        for path in (folder.rank_log(failing_rank), submission.error_of(failing_rank)):
            if path.exists():
                return path
    # Until the job runs, its folder has no logs; what Slurm itself says is only in the output of the whole job.
    own = [submission.output_of(0), submission.error_of(0)] if submission else []
    logs = [path for path in (*folder.logs.glob("*"), *own) if path.suffix in LOG_SUFFIXES and path.exists()]
    spoken = [path for path in logs if path.stat().st_size]
    return max(spoken, key=lambda path: path.stat().st_mtime, default=None)


def last_line(log: Path | None) -> str:
    """The last line that is not empty. submitit's own remarks say nothing about the trial, and do not count."""
    lines = [line.strip() for line in tail(log).splitlines()] if log else []
    return next((line for line in reversed(lines) if line and not line.startswith("submitit ")), "")


def tail(path: Path) -> str:
    """The end of a file that may be large, still growing, or absent."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
