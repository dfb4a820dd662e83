"""The forms in which Slurm's tools write: durations, devices, ranges, names of nodes, and settings."""

from __future__ import annotations

import re
from collections.abc import Iterator

GPUS = re.compile(r"\bgpu:(?:([^:,(|]+):)*(\d+)")
PART = re.compile(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)*")
RANGES = re.compile(r"\[([^\]]*)\]")
SPAN = re.compile(r"(\d+)(?:-(\d+))?(?::(\d+))?")
DURATION = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def seconds(text: str) -> int | None:
    """A duration: `30` (minutes), `30:00`, `1:30:00`, `2-12:00:00`; None where, as UNLIMITED, it sets no limit."""
    match = DURATION.fullmatch(text.strip())
    if match is None:
        return None
    days, *parts = match.groups()
    values = [int(part) for part in parts if part is not None]
    # With days, or with all three parts, the first is hours; otherwise it is minutes.
    if days is None and len(values) < 3:
        values = [0, *values]
    hours, mins, secs = [*values, 0, 0][:3]
    return ((int(days or 0) * 24 + hours) * 60 + mins) * 60 + secs


def minutes(text: str) -> float | None:
    """The same in minutes."""
    limit = seconds(text)
    return None if limit is None else limit / 60


def gpus_in(gres: str) -> list[tuple[str, int]]:
    """Type (empty where Slurm names none) and number: `gpu:a100:4(S:0-1),nvme:1` -> a100, 4."""
    return [(kind, int(count)) for kind, count in GPUS.findall(gres)]


def numbers(ranges: str) -> list[str]:
    """`08-10,12` -> 08, 09, 10, 12: zeros in front belong to the name of a node. `0-4:2` -> 0, 2, 4."""
    spans = [SPAN.fullmatch(part) for part in ranges.split(",")]
    return [
        f"{number:0{len(first)}d}"
        for first, last, step in (span.groups() for span in spans if span)
        for number in range(int(first), int(last or first) + 1, int(step or 1))
    ]


def node_names(short: str) -> tuple[str, ...]:
    """`node[08-10,12],login1` -> node08, node09, node10, node12, login1."""
    return tuple(name for part in PART.findall(short) for name in _names(part))


def _names(part: str) -> Iterator[str]:
    ranges = RANGES.search(part)
    if ranges is None:
        yield part
        return
    for number in numbers(ranges.group(1)):
        # A name may hold several ranges, as that of a rack and a node does.
        yield from _names(f"{part[: ranges.start()]}{number}{part[ranges.end() :]}")


def pairs_of_lines(text: str) -> dict[str, str]:
    """Parse the output of `scontrol show config`: a `Name = value` on each line."""
    return {name: value.strip() for name, value in re.findall(r"^(\S+)\s*= ?(.*)$", text, re.MULTILINE)}


def pairs_of_words(line: str) -> dict[str, str]:
    """Parse the output of `scontrol -o show partition`: `Name=value` words."""
    return dict(re.findall(r"(?<!\S)([^\s=]+)=(\S*)", line))
