"""A bar on the terminal of a command that works through many things; in a pipe, and with --quiet, there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import Progress

from cli.output.console import complaints, console


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Give the block a function that is told of how many things so many are done."""
    is_hidden = console.quiet or not complaints.is_terminal
    with Progress(console=complaints, transient=True, disable=is_hidden) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
