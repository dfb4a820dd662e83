"""The `trisweep` script: what takes a moment is imported while Ctrl-C already ends the process without a traceback."""

from __future__ import annotations

import os
import signal
from types import FrameType

ASKED, IN_BASH = "_TRISWEEP_COMPLETE", "complete_bash"
"""The variable and its value by which bash asks what could come next."""

INTERRUPTED = 130
"""As in `conf.errors`, which is among what is imported below."""


def main() -> None:
    """Run a command."""
    before = signal.signal(signal.SIGINT, _end_at_once)
    if os.environ.get(ASKED) == IN_BASH and _bash_is_answered():
        return
    from cli import main as commands

    signal.signal(signal.SIGINT, before)
    try:
        commands.main()
    except KeyboardInterrupt:
        _end_at_once(signal.SIGINT, None)


def _bash_is_answered() -> bool:
    from cli.command_line.completion import answer_bash

    return answer_bash()


def _end_at_once(number: int, frame: FrameType | None) -> None:
    # Nothing has been opened or started yet, and an exception would be told as a traceback of half an import.
    os._exit(INTERRUPTED)
