"""The one console of all commands, and how it shows what may hold brackets or secrets.

What is printed as plain text stays as it is: a folder may be called `[/x]`, a rank's last words may hold `:smile:`.
Whoever wants bold or colour prints a rich `Text`.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import Progress
from rich.segment import Segment
from rich.text import Text

from conf.credentials import hide_credentials
from conf.visible import visible

for size in ("COLUMNS", "LINES"):
    if set(os.environ.get(size, "")) == {"0"}:  # not known, say some terminals; rich would print nothing
        del os.environ[size]


class SafeConsole(Console):
    """A console on which nothing acts but what it does itself: no text moves the cursor or rings."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            is_own = segment.control or segment.text == "\r"
            yield segment if is_own else Segment(visible(segment.text), segment.style)


console = SafeConsole(highlight=False, markup=False, emoji=False)
complaints = SafeConsole(highlight=False, markup=False, emoji=False, soft_wrap=True, stderr=True)

COMMAND = re.compile(r"`([^`]*)`")
NO_BREAK = "\N{NO-BREAK SPACE}"

SILENT = "Slurm does not answer; states are as last known."


def print_unwrapped(text: str) -> None:
    """Print a line that rich must not break, because programs and people search for it as a whole."""
    console.print(text, soft_wrap=True)


def print_sentences(text: str) -> None:
    """Print sentences broken to the width of a terminal, with commands in backticks whole; in a pipe as they are."""
    if console.is_terminal:
        whole = COMMAND.sub(lambda command: command[1].replace(" ", NO_BREAK), text)
        lines = textwrap.wrap(whole, console.width, break_long_words=False, break_on_hyphens=False)
        text = "\n".join(lines).replace(NO_BREAK, " ")
    print_unwrapped(text.replace("`", ""))


def print_verbatim(text: str) -> None:
    """Print what programs read, such as a script, where the console prints: with none of its lines broken."""
    if not console.quiet:
        typer.echo(text, err=console.stderr)


def print_json(name: str, content: Mapping[str, Any]) -> None:
    """Print the one document of a command that was asked for JSON, on stdout."""
    from results.render.json_and_csv import json_lines

    sys.stdout.writelines(map(hide_credentials, json_lines(name, content)))


def heading(head: str, rest: str) -> Text:
    """A line that begins with a name in bold."""
    return Text.assemble((head, "bold"), rest)


def print_complaint(message: str) -> None:
    """Print what went wrong as the one message of a command, on stderr."""
    line = heading("trisweep:", f" {hide_credentials(message)}")
    line.stylize("red", 0, len("trisweep:"))
    complaints.print(line)


def shown_path(path: Path) -> str:
    """The path relative to the current folder, if it lies below that."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


MOMENT_SECONDS = 2.0


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Give the block a function that is told of how many things so many are done.

    A terminal shows it as a bar once the block takes more than a moment; in a pipe, and with --quiet, there is none.
    """
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
