"""A program that brings MLflow up to date again and again while a sweep runs, beside the command that runs it.

Its argument is the sweep's folder. Standard input is a pipe whose other end that command holds: its first line is the
`TrackingSpec`, which may hold a password, and it ends when the command does. Nothing is loaded before the first import
is due, so that a short sweep pays for none.
"""

from __future__ import annotations

import json
import os
import select
import sys
from pathlib import Path
from typing import Any

LOWEST_PRIORITY = 19


def follow(folder: Path, tracking: dict[str, Any]) -> None:
    """Import every `live_seconds` until standard input ends."""
    os.nice(LOWEST_PRIORITY)  # trials that are measured on this machine come first
    while not _ends_within(tracking["live_seconds"]):
        _import(folder, tracking)


def _import(folder: Path, tracking: dict[str, Any]) -> None:
    from conf.errors import TrisweepError
    from conf.sites import TrackingSpec
    from results.mlflow.sweep_import import import_sweep
    from sweeps.sweep import Sweep
    from sweeps.trial import SweepFolder

    try:
        sweep = Sweep.stored_in(SweepFolder(folder))
        import_sweep(sweep, TrackingSpec.model_validate(tracking), folder.parent)
    except (TrisweepError, FileNotFoundError):
        return  # the import at the end of the sweep says what is wrong


def _ends_within(seconds: float) -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(readable)


if __name__ == "__main__":
    follow(Path(sys.argv[1]), json.loads(sys.stdin.readline()))
