"""Slurm's short form for the names of nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator

PART = re.compile(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)*")
RANGES = re.compile(r"\[([^\]]*)\]")


def node_names(short: str) -> tuple[str, ...]:
    """`node[08-10,12],login1` -> node08, node09, node10, node12, login1."""
    return tuple(name for part in PART.findall(short) for name in _names(part))


def _names(part: str) -> Iterator[str]:
    found = RANGES.search(part)
    if found is None:
        yield part
        return
    for span in found.group(1).split(","):
        first, _, last = span.partition("-")
        for number in range(int(first), int(last or first) + 1):
            # A name may hold several ranges, as that of a rack and a node does.
            yield from _names(f"{part[: found.start()]}{number:0{len(first)}d}{part[found.end() :]}")
