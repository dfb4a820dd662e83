"""How a sweep on this machine says how it stands while it runs; the command line draws it."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from sweeps.reading import TrialReading


class Progress(Protocol):
    """What a running sweep reports to. It is entered, as a context, when trials start, and left when all have ended."""

    def show(self, states: Sequence[TrialReading]) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
