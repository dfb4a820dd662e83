"""Checks, and the runner of them: as many at once as there are devices for, within a budget of time."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import Field

from conf.errors import TrisweepError
from conf.types.schema import Frozen


class Verdict(StrEnum):
    PASSED = "ok"
    FAILED = "FAILED"
    LEFT_OUT = "left out"


class CheckFinding(Frozen):
    """The observation of a check.

    Attributes:
        seen: one sentence for people.
        figures: everything, by name, for the JSON file.
    """

    passed: bool
    seen: str
    figures: dict[str, Any] = Field(default_factory=dict)


class Result(Frozen):
    """The end of a check.

    Attributes:
        part: the part of the report in which it stands.
    """

    name: str
    part: str
    num_ranks: int
    verdict: Verdict
    seen: str
    seconds: float
    figures: dict[str, Any] = Field(default_factory=dict)


class CheckLeftOut(Exception):  # no error: it says in one sentence why a check cannot be made here
    """A check cannot be made."""


@dataclass(frozen=True)
class Check:
    """Something to find out on a few ranks.

    Attributes:
        num_ranks: the places that it holds while it runs: as many as all ranks where nothing may run beside it.
        seconds: what it takes on a healthy machine; it is not begun when the budget has less left.
        run: is called with the numbers of its places, each of which is a device, or a share of one.
    """

    name: str
    part: str
    num_ranks: int
    seconds: float
    run: Callable[[tuple[int, ...]], CheckFinding]


@dataclass
class Places:
    """The places of ranks that no check holds, and how many checks have been given theirs."""

    free: list[int]
    num_served: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def take(self, position: int, count: int) -> Iterator[tuple[int, ...]]:
        """Wait until all checks before this position have theirs: else small ones would keep a large one waiting."""
        with self.changed:
            self.changed.wait_for(lambda: self.num_served == position and len(self.free) >= count)
            mine, self.free = tuple(self.free[:count]), self.free[count:]
            self.num_served += 1
            self.changed.notify_all()
        try:
            yield mine
        finally:
            with self.changed:
                self.free = sorted([*self.free, *mine])
                self.changed.notify_all()


@dataclass
class Runner:
    """Runs checks.

    Attributes:
        num_ranks: the ranks that may run at once.
        deadline: in monotonic seconds; no check begins that would end later.
        tell: is called with each result as soon as it is there, by one thread at a time.
        stopped: nothing more is begun once it is set.
    """

    num_ranks: int
    deadline: float
    tell: Callable[[Result], None]
    stopped: threading.Event = field(default_factory=threading.Event)
    results: list[Result] = field(default_factory=list)

    def run(self, checks: Sequence[Check]) -> None:
        """Run checks beside each other, as far as places reach, and return when all have ended."""
        places, telling = Places(list(range(self.num_ranks))), threading.Lock()

        def make(position: int, check: Check) -> None:
            with places.take(position, min(check.num_ranks, self.num_ranks)) as mine:
                result = self._result(check, mine)
            with telling:
                self.results.append(result)
                self.tell(result)

        with ThreadPoolExecutor(max_workers=self.num_ranks) as threads:  # more would only wait for places
            waited_for = [threads.submit(make, position, check) for position, check in enumerate(checks)]
            for done in waited_for:
                done.result()

    def _result(self, check: Check, places: tuple[int, ...]) -> Result:
        start = time.monotonic()
        verdict, seen, figures = self._outcome(check, places)
        seconds = time.monotonic() - start
        return Result(
            name=check.name,
            part=check.part,
            num_ranks=check.num_ranks,
            verdict=verdict,
            seen=seen,
            seconds=seconds,
            figures=dict(figures),
        )

    def _outcome(self, check: Check, places: tuple[int, ...]) -> tuple[Verdict, str, Mapping[str, Any]]:
        if check.num_ranks > self.num_ranks:
            return Verdict.LEFT_OUT, f"needs {check.num_ranks} ranks; there are {self.num_ranks}", {}
        if self.stopped.is_set():
            return Verdict.LEFT_OUT, "interrupted", {}
        if time.monotonic() + check.seconds > self.deadline:
            return Verdict.LEFT_OUT, f"takes about {check.seconds:.0f} s, and less was left of the time", {}
        try:
            finding = check.run(places)
        except CheckLeftOut as reason:
            return Verdict.LEFT_OUT, str(reason), {}
        except TrisweepError as error:
            return Verdict.FAILED, str(error), {}
        except Exception as error:  # a failed check must not stop the others
            return Verdict.FAILED, f"{type(error).__name__}: {error}", {"traceback": traceback.format_exc()}
        if self.stopped.is_set():
            return Verdict.LEFT_OUT, "interrupted", finding.figures
        return Verdict.PASSED if finding.passed else Verdict.FAILED, finding.seen, finding.figures
