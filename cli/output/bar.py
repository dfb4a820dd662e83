"""A bar on the terminal of a command that works through many things and takes more than a moment.

In a pipe, and with --quiet, there is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import Progress

from cli.output.console import complaints, console

MOMENT_SECONDS = 2.0


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Give the block a function that is told of how many things so many are done."""
    is_hidden = console.quiet or not complaints.is_terminal
    progress = Progress(console=complaints, transient=True, disable=is_hidden)
    task, began = progress.add_task(what, total=None), time.monotonic()

    def tell(done: int, total: int) -> None:
        progress.update(task, completed=done, total=total)
        if not progress.live.is_started and time.monotonic() - began > MOMENT_SECONDS:
            progress.start()

    try:
        yield tell
    finally:
        progress.stop()
