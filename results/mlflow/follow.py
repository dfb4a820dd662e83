"""A program that brings MLflow up to date again and again while a sweep runs, beside the command that runs or shows it.

Its argument is the sweep's folder, or a folder of sweeps, of which those are followed that have not ended. Standard
input is a pipe whose other end that command holds: its first line is the `TrackingSpec`, which may hold a password, and
it ends when the command does. Nothing is loaded before the first import is due, so that a short sweep pays for none.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conf.types.sites import TrackingSpec
    from sweeps.trial import SweepFolder

LOWEST_PRIORITY = 19


def follow(folder: Path, tracking: dict[str, Any]) -> None:
    """Import every `live_seconds` until standard input ends."""
    os.nice(LOWEST_PRIORITY)  # trials that are measured on this machine come first
    bring_up_to_date: Callable[[], None] | None = None
    while not _ends_within(tracking["live_seconds"]):
        bring_up_to_date = bring_up_to_date or import_of(folder, tracking)
        bring_up_to_date()


def import_of(folder: Path, tracking: dict[str, Any]) -> Callable[[], None]:
    """Return a function that brings the sweep, or all sweeps that have not ended, up to date in the store."""
    from conf.types.sites import TrackingSpec
    from results.mlflow.unfinished import UnfinishedSweeps
    from sweeps.trial import SweepFolder

    sweep, store = SweepFolder(folder), TrackingSpec.model_validate(tracking)
    if sweep.record.exists():
        return partial(_import, sweep, store)
    return UnfinishedSweeps(folder, store).import_all


def _import(folder: SweepFolder, store: TrackingSpec) -> None:
    from conf.errors import TrisweepError
    from results.mlflow.sweep_import import import_sweep
    from sweeps.sweep import Sweep

    try:
        import_sweep(Sweep.stored_in(folder), store, folder.path.parent)
    except (TrisweepError, FileNotFoundError):
        return  # the import at the end of the sweep says what is wrong


def _ends_within(seconds: float) -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(readable)


if __name__ == "__main__":
    follow(Path(sys.argv[1]), json.loads(sys.stdin.readline()))
