"""A clock of a rank's step, which knows what the rank waits for now and where the time goes.

    Line         the ranks of one group, as one rank sees them; counts the operations that it has started there
    Operation    one collective or transfer of a line
    Clock        is told of every wait: a watchdog asks for the present one, a meter for the seconds of a step
    StepRecord   what a clock noted of one step: its waits and parts, and where each pass of the pipeline began

A wait inside a named part of the step counts as a wait, and is taken off the part:

    part "optimizer"  |--- work ---|=== wait on "world" ===|--- work ---|
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import torch

if TYPE_CHECKING:
    from train_core.parallel.schedules import Action

Result = TypeVar("Result")
KIBIBYTE = 1024
GROUP, CHANNEL = "group", "channel"
"""The kinds of the first operation of a line: its ranks, or the two ends of a channel, come together."""

TRANSFERS = ("send", "receive", CHANNEL)
FEW_RANKS = 8


class Line:
    """The ranks of one group, or the other end of one channel, as one rank sees them.

    Attributes:
        name: the axis: `tensor`, `pipeline`, `data`, `embedding` or `world`.
        ranks: their numbers in the world; for a transfer only the other end.
        num_started: how many operations this rank has started here. All ranks of a group start the same ones in the
            same order, so that the count says who is behind.
    """

    def __init__(self, name: str, ranks: Sequence[int], clock: Clock) -> None:
        self.name, self.ranks, self.clock = name, ranks, clock
        self.num_started = 0
        # A watchdog compares, line by line, how far each rank has come, and so needs to know all lines of a rank.
        clock.lines.append(self)

    def start(self, kind: str, num_bytes: int) -> Operation:
        self.num_started += 1
        return Operation(kind, self, self.num_started, num_bytes)


class Operation(NamedTuple):
    """One collective or transfer; `number` counts the operations of its line from 1."""

    kind: str
    line: Line
    number: int
    num_bytes: int

    @property
    def is_transfer(self) -> bool:
        return self.kind in TRANSFERS

    def __str__(self) -> str:
        """The operation in words, such as `all_reduce over data, 512 KiB` or `receive from rank 2, 8 KiB`."""
        if self.kind in (GROUP, CHANNEL):
            return f"making the communicator of the {self.line.name} axis with {_names(self.line.ranks)}"
        size = f"{max(1, self.num_bytes // KIBIBYTE)} KiB"
        if self.is_transfer:
            return f"{self.kind} {'to' if self.kind == 'send' else 'from'} rank {self.line.ranks[0]}, {size}"
        return f"{self.kind} over {self.line.name}, {size}"


def _names(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 4, 8`, or of many only the first and the last: those of an axis are equally far apart."""
    if len(ranks) > FEW_RANKS:
        return f"{len(ranks)} ranks, {ranks[0]} to {ranks[-1]}"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(str(rank) for rank in ranks)}"


class Ongoing(Protocol):
    """An operation that is on its way, with the methods of `dist.Work` that are used here."""

    def wait(self) -> object: ...

    def is_completed(self) -> bool: ...


class Span(NamedTuple):
    """The time from one mark to another. `inside` is the part of the step that it belongs to, empty for none."""

    name: str
    inside: str
    start: Any
    end: Any


class PassMark(NamedTuple):
    """A pass begins, and the one before it ends.

    Attributes:
        action: None where the last pass of the step has ended.
        num_spans: how many spans had been noted by then; those of the pass come after them.
    """

    action: Action | None
    at: Any
    num_spans: int


class StepRecord(NamedTuple):
    """A clock's notes of one step. Marks are read by the clock that made them.

    Attributes:
        began: the mark of the step's beginning.
        began_at: the same moment in seconds of `time.perf_counter`, which all processes of a machine share.
    """

    step: int
    began: Any
    began_at: float
    spans: list[Span]
    passes: list[PassMark]


class Clock:
    """Records waits and named parts of a step. The training thread writes; a watchdog reads.

    Attributes:
        step: the step that runs; 0 before the first.
        micro_batch: the one that is worked on; None outside the pipeline.
        waiting: what the training thread waits for, and since when in seconds of `time.monotonic`; None while it works.
        num_waits: grows whenever a wait ends, which tells a watchdog that the rank is making progress.
    """

    def __init__(self) -> None:
        self.step = 0
        self.micro_batch: int | None = None
        # One tuple, which is replaced at once: another thread never sees one wait's operation with another's time.
        self.waiting: tuple[Operation, float] | None = None
        self.num_waits = 0
        self.lines: list[Line] = []
        self._inside = ""
        self._spans: list[Span] = []
        self._passes: list[PassMark] = []
        self._began: Any = None
        self._began_at = 0.0

    def mark(self) -> Any:
        return time.perf_counter()

    def seconds_between(self, start: Any, end: Any) -> float:
        return float(end - start)

    def _moment(self) -> tuple[Any, float]:
        """A mark, and the same moment by the host's clock."""
        now = self.mark()
        return now, float(now)

    def begin_step(self, step: int) -> None:
        self.step = step
        self._spans, self._passes = [], []
        self._began, self._began_at = self._moment()

    def begin_pass(self, action: Action | None) -> None:
        """A pass of the pipeline begins; None says that the last one has ended."""
        self._passes.append(PassMark(action, self.mark(), len(self._spans)))

    def end_step(self) -> StepRecord:
        """End the step and return its record. What comes between this step and the next one is not added to it."""
        record = StepRecord(self.step, self._began, self._began_at, self._spans, self._passes)
        self._spans, self._passes = [], []
        return record

    def current_wait(self) -> tuple[Operation, float] | None:
        """The operation that holds this rank up, and since when; None while it works. For other threads."""
        return self.waiting

    def wait(self, operation: Operation, finish: Callable[[], Result]) -> Result:
        """The result of `finish`, which returns when `operation` is done."""
        start = self.mark()
        self.waiting = operation, time.monotonic()
        try:
            return finish()
        finally:
            # Also after an error: a rank that is about to fail must not be taken for one that hangs.
            self.waiting = None
            self.num_waits += 1
            self._spans.append(Span(operation.line.name, self._inside, start, self.mark()))

    def follow(self, operation: Operation, start: Callable[[], object]) -> None:
        """Call `start`, which begins an operation that no `Pending` waits for, such as those of FSDP2.

        On a CPU the call returns when the operation is done, so that the call itself is the wait.
        """
        self.wait(operation, start)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time the block as a part of the step; what it waits for is counted apart."""
        # Waits inside the block note the part, so that `seconds_by_name` can take them off it.
        start, self._inside = self.mark(), name
        try:
            yield
        finally:
            self._inside = ""
            self._spans.append(Span(name, "", start, self.mark()))

    def seconds_by_name(self) -> dict[str, float]:
        """Seconds since the step began: of waits by the name of their line, and of parts without their waits.

        The device must be idle, because an event that it has not reached has no time yet.
        """
        seconds: dict[str, float] = defaultdict(float)
        for span in self._spans:
            elapsed = self.seconds_between(span.start, span.end)
            seconds[span.name] += elapsed
            if span.inside:
                # The part's own span covers the wait too, and is added when its turn comes.
                seconds[span.inside] -= elapsed
        return seconds


class DeviceClock(Clock):
    """The clock of a host that only queues work for a device.

    The host's own clock would time the queueing and not the work. Times are therefore those of events on the stream
    that computes, and a wait that the host has queued is not over before the stream has come through it.
    """

    def __init__(self) -> None:
        super().__init__()
        # torch's handles of the operations would keep the memory of what they fill; events keep none.
        self._unfinished: deque[tuple[Operation, Any]] = deque()
        self._oldest: tuple[Operation, float] | None = None
        self._stream: torch.cuda.Stream | None = None

    def mark(self) -> Any:
        # Asked for once: torch takes some 30 calls of Python to say which stream computes.
        self._stream = self._stream or torch.cuda.current_stream()
        return _event_on(self._stream)

    def seconds_between(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) / 1e3

    def _moment(self) -> tuple[Any, float]:
        # Asked between two steps, when the device is idle, so that it comes through the mark at once.
        return self.mark(), time.perf_counter()

    def wait(self, operation: Operation, finish: Callable[[], Result]) -> Result:
        """The host returns at once; the stream goes through its waits in the order in which it was told of them."""
        result = super().wait(operation, finish)
        self._expect(operation, self._spans[-1].end)
        return result

    def follow(self, operation: Operation, start: Callable[[], object]) -> None:
        """Count no time, because the computing stream need not wait as long as the operation takes."""
        start()
        self._expect(operation, _event_on(torch.cuda.current_stream()))

    def _expect(self, operation: Operation, end: Any) -> None:
        # The stream comes through its events in order, so that only the front of the queue can have been reached.
        while self._unfinished and self._unfinished[0][1].query():
            self._unfinished.popleft()
        self._unfinished.append((operation, end))

    def current_wait(self) -> tuple[Operation, float] | None:
        """The first wait that the stream has not come through, and since when it has been found to be that."""
        unfinished = tuple(self._unfinished)  # the training thread goes on changing it
        oldest = next((operation for operation, end in unfinished if not end.query()), None)
        if oldest is None:
            self._oldest = None
        # The stream does not say when it began to wait, so the time counts from when a watchdog first saw this wait.
        elif self._oldest is None or self._oldest[0] is not oldest:
            self._oldest = oldest, time.monotonic()
        return self._oldest or self.waiting


def _event_on(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event
