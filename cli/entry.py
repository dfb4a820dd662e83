"""The `trisweep` script: what takes a moment is imported while Ctrl-C already ends the process without a traceback."""

from __future__ import annotations

import gc
import os
import signal
from types import FrameType

INTERRUPTED = 130
"""As in `conf.errors`, which is among what is imported below."""

NEW_OBJECTS = 1_000_000
"""The number of objects that may be made before Python looks for garbage among them; 700 unless said otherwise."""


def main() -> None:
    # Nearly all that imports and a composed configuration make stays: looking through it, again and again, for garbage
    # took a sixth of a short command's time. A long one collects as it did, only in larger portions.
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])
    try:
        _run()
    finally:
        # As it ends, Python would look through all objects once more, although the system takes the memory back anyway.
        gc.freeze()


def _run() -> None:
    before = signal.signal(signal.SIGINT, _end_at_once)
    from cli import main as commands

    signal.signal(signal.SIGINT, before)
    try:
        commands.main()
    except KeyboardInterrupt:
        _end_at_once(signal.SIGINT, None)


def _end_at_once(number: int, frame: FrameType | None) -> None:
    # Nothing has been opened or started yet, and an exception would be told as a traceback of half an import.
    os._exit(INTERRUPTED)
