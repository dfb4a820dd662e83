"""Ending a job of this machine together with everything it started."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterable

import psutil

CANCEL_SECONDS = 5.0
"""A job that is interrupted has this long to write down how it ended."""

HOLD_SECONDS = 1.0
STILL = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def end_trees(roots: Iterable[psutil.Process], grace_seconds: float = CANCEL_SECONDS) -> None:
    """Interrupt the jobs under `roots` and wait for them; what is left after the grace is killed.

    The interrupt goes to the children of the roots: submitit's own process, the root, ends when its job does.
    """
    roots = list(roots)
    # A root that has not started its job yet must not do so while it is being ended: nobody would find that job.
    for root in roots:
        _hold(root)
    trees = [process for root in roots for process in _tree(root)]
    for root in roots:
        jobs = _children(root)
        for job in jobs:
            _send(job, signal.SIGINT)
        _send(root, signal.SIGCONT if jobs else signal.SIGKILL)
    _, alive = psutil.wait_procs(trees, timeout=grace_seconds)
    # The trees are looked up again, because a job that is ending may have started further processes.
    for survivor in {process for root in alive for process in _tree(root)}:
        _send(survivor, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=grace_seconds)


def _hold(process: psutil.Process) -> None:
    """Stop a process, and return when it stands still, which takes no longer than the kernel takes to say so."""
    _send(process, signal.SIGSTOP)
    deadline = time.monotonic() + HOLD_SECONDS
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.status() not in STILL and time.monotonic() < deadline:
            time.sleep(0.001)


def _tree(root: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return [root, *root.children(recursive=True)]
    return []


def _children(root: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return root.children()
    return []


def _send(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
