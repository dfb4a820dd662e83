"""Durations as Slurm writes them, and as people who know sbatch write a limit."""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import BeforeValidator

from conf.types.schema import Count, Positive, refusal

DURATION = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)


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
    limit = seconds(text)
    return None if limit is None else limit / 60


def _whole_minutes(limit: object) -> object:
    """The minutes of a text; Slurm rounds up what is less than one."""
    if not isinstance(limit, str):
        return limit
    if (stated := minutes(limit)) is None:
        problem = "is neither a number of minutes nor a time as sbatch takes it"
        raise refusal(problem, "Write 720, or one of 12:00:00, 1-12, 1-12:30:00 and 30:00 (minutes:seconds).")
    return math.ceil(stated)


Minutes = Annotated[Count, BeforeValidator(_whole_minutes)]
PositiveMinutes = Annotated[Positive, BeforeValidator(_whole_minutes)]
