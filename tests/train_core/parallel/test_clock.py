"""What a clock says where the host only queues work."""

from __future__ import annotations

import weakref

import pytest
import torch

from train_core.parallel.clock import DeviceClock, Line


class Event:
    """A mark on a stream that goes on only when it is told to."""

    passed = False

    def __init__(self, *, enable_timing: bool = False) -> None:
        self.stream: object = None

    def record(self, stream: object = None) -> None:
        self.stream = stream or torch.cuda.current_stream()

    def query(self) -> bool:
        return self.passed


class Work:
    def wait(self) -> None:
        """The stream waits, and the host does not."""


def test_a_device_is_held_up_by_the_first_wait_that_it_has_not_come_through(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, marks = DeviceClock(), list[Event]()

    def mark() -> Event:
        marks.append(Event())
        return marks[-1]

    monkeypatch.setattr(clock, "mark", mark)
    line = Line("data", range(2), clock)
    first, second = line.start("all_reduce", 8), line.start("all_gather", 8)
    assert clock.current_wait() is None, "nobody needs the results yet"
    for operation in (first, second):
        clock.wait(operation, Work().wait)
    found = clock.current_wait()
    assert found is not None
    assert found[0] is first
    marks[1].passed = True
    assert (found := clock.current_wait()) is not None
    assert found[0] is second
    marks[3].passed = True
    assert clock.current_wait() is None


def test_what_runs_beside_the_computation_can_hold_a_device_up_and_is_no_wait_of_its_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, work = DeviceClock(), Work()
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "beside")
    operation = Line("data", range(2), clock).start("all_gather", 8)
    clock.follow(operation, work.wait)
    found = clock.current_wait()
    assert found is not None
    assert found[0] is operation
    assert clock.seconds_by_name() == {}


def test_a_clock_does_not_keep_what_an_operation_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A work holds its output; the device needs that memory while the next steps are queued."""
    clock, work = DeviceClock(), Work()
    monkeypatch.setattr(clock, "mark", Event)
    clock.wait(Line("tensor", range(2), clock).start("all_reduce", 8), work.wait)
    held = weakref.ref(work)
    del work
    assert held() is None
    assert clock.current_wait() is not None


def test_the_computing_stream_is_asked_for_once_and_not_at_every_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's answer takes the host longer than the wait itself; FSDP2 starts its collectives on streams of its own."""
    clock, streams = DeviceClock(), iter(("computing", "beside"))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: next(streams))
    line = Line("tensor", range(2), clock)
    clock.begin_step(1)
    for _ in range(2):
        clock.wait(line.start("all_reduce", 8), Work().wait)
    clock.follow(line.start("all_gather", 8), Work().wait)
    clock.wait(line.start("all_reduce", 8), Work().wait)
    spans = clock.end_step().spans
    assert {mark.stream for span in spans for mark in (span.start, span.end)} == {"computing"}
    assert [end.stream for _, end in clock._unfinished] == ["computing", "computing", "beside", "computing"]
