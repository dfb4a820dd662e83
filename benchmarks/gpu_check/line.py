"""The lines that the check prints while it runs."""

from __future__ import annotations

import shutil
import textwrap

from benchmarks.gpu_check.check import Result, Verdict

FALLBACK_SIZE = (100, 24)
NAME_WIDTH, VERDICT_WIDTH, SECONDS_WIDTH = 40, 9, 6
MOST_LINES = 6
"""The most lines of a cause; all of it is in the report."""


def width() -> int:
    return shutil.get_terminal_size(FALLBACK_SIZE).columns


def line_of(result: Result) -> str:
    """Verdict, seconds, name, and what was seen: behind the name where it fits, else below it."""
    head = f"{result.verdict:<{VERDICT_WIDTH}}{_seconds(result):>{SECONDS_WIDTH}}  {result.name}"
    whole = f"{head:<{VERDICT_WIDTH + SECONDS_WIDTH + 2 + NAME_WIDTH}}  {result.seen}"
    if len(whole) <= width():
        return whole
    return "\n".join([head, *_wrap(result.seen)])


def _seconds(result: Result) -> str:
    return "" if result.verdict is Verdict.LEFT_OUT else f"{result.seconds:.0f} s"


def _wrap(text: str) -> list[str]:
    indent = " " * (VERDICT_WIDTH + SECONDS_WIDTH + 2)
    lines = textwrap.wrap(text, width(), initial_indent=indent, subsequent_indent=indent)
    return lines if len(lines) <= MOST_LINES else [*lines[: MOST_LINES - 1], f"{indent}..."]


def field_line(name: str, text: str) -> str:
    """A line of the head: the name of a field and its value, wrapped."""
    return textwrap.fill(text, width(), initial_indent=f"{name:<11}", subsequent_indent=" " * 11)
