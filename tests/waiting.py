"""Waits for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable

LEAST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.05, 1.0
PAUSES = 4
"""Who asks pauses so many times as long as the answer took: squeue and sacct take the cores that the jobs need."""


def wait_for(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait until it holds; fail where it does not hold in time."""
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if condition():
            return
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain"
        time.sleep(min(max(LEAST_PAUSE_SECONDS, PAUSES * (time.monotonic() - began)), MOST_PAUSE_SECONDS))
