"""Counts of what this process asks of the operating system, which are the same on a busy machine and on an idle one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_watches = list[tuple[tuple[str, ...], list[str]]]()


@contextmanager
def audited(*events: str) -> Iterator[list[str]]:
    """The audit events of these names within the block, each with the name of the file or program that it is about."""
    watch = (events, list[str]())
    _add_hook()
    _watches.append(watch)
    try:
        yield watch[1]
    finally:
        _watches.remove(watch)


@cache
def _add_hook() -> None:
    """Once in a process, because Python takes no audit hook away again."""
    sys.addaudithook(_note)


def _note(event: str, arguments: tuple[object, ...]) -> None:
    for events, notes in _watches:
        if event in events:
            notes.append(f"{event} {Path(str(arguments[0])).name}" if arguments else event)
