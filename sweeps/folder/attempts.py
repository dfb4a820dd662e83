"""The attempts at a trial that have ended: kept when the next one begins, which forgets their measurement.

How often a trial may be tried again, and which nodes fail, is told from them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationError

from conf.private_files import unreadable
from conf.types.schema import Count, Frozen
from train_core.measurement import Fault, Measurement, Outcome
from train_core.trial_folder import JobFolder
from train_core.whole_files import append_whole


class EndedAttempt(Frozen):
    """One line of `attempts.jsonl`: how an attempt ended that brought no result.

    Attributes:
        number: of the attempt; 1 for the first.
        nodes: those that may be to blame.
        ended: seconds since the epoch.
    """

    number: Count
    outcome: Annotated[Outcome, Field(strict=False)]
    fault: Annotated[Fault, Field(strict=False)] | None
    nodes: Annotated[tuple[str, ...], Field(strict=False)]
    cause: str
    ended: float


def ended_attempt(number: int, measurement: Measurement) -> EndedAttempt:
    return EndedAttempt(
        number=number,
        outcome=measurement.outcome,
        fault=measurement.why,
        nodes=measurement.nodes,
        cause=measurement.cause,
        ended=measurement.ended,
    )


def keep_attempt(folder: JobFolder, attempt: EndedAttempt) -> None:
    """Write it down, unless whoever was killed while doing so has come so far."""
    if attempt.number not in (known.number for known in read_attempts(folder)):
        append_whole(folder.attempts, attempt.model_dump_json() + "\n")


def read_attempts(folder: JobFolder) -> tuple[EndedAttempt, ...]:
    """The attempts before the present one, the earliest first; a damaged line is left out.

    Raises:
        UsageError: the file may not be read.
    """
    try:
        lines = folder.attempts.read_text(errors="replace").splitlines()
    except PermissionError as error:
        raise unreadable(folder.attempts, error) from None
    except OSError:
        return ()
    return tuple(attempt for line in lines if (attempt := _parse(line)))


def _parse(line: str) -> EndedAttempt | None:
    try:
        return EndedAttempt.model_validate_json(line)
    except ValidationError:
        return None
