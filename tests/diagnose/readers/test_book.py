"""The steps of one start: copies, restarts, ramps and bounded memory."""

from __future__ import annotations

import math

import pytest

from diagnose.readers.book import MOST_STEPS, StepBook, settle_steps
from diagnose.runs import Fact, LogLine, SaidBy, UserRun

LINE = LogLine("a.log", 1, "x")


def test_a_long_log_stays_in_memory_with_its_mean() -> None:
    book = StepBook()
    for number in range(1, 2 * MOST_STEPS + 2):
        book.add(number, {"seconds": 1.0 if number % 2 else 3.0}, LINE, "", "")
    assert len(book.steps) <= MOST_STEPS
    assert sum(step.covers for step in book.steps) == 2 * MOST_STEPS + 1
    total = sum(step.covers * step.found["seconds"] for step in book.steps)
    assert total == pytest.approx(4 * MOST_STEPS + 1)


def test_the_most_memory_of_all_ranks_is_kept() -> None:
    book, run = StepBook(), UserRun("a")
    book.add(1, {"seconds": 2.0, "memory": 10.0}, LINE, "0", "")
    book.add(1, {"seconds": 2.5, "memory": 30.0, "loss": 4.0}, LINE, "1", "")
    settle_steps(run, book)
    assert [(step.seconds, step.memory_bytes, step.loss) for step in run.steps] == [(2.0, 30.0, 4.0)]


def test_a_time_between_two_clocks_is_that_of_the_steps_between() -> None:
    book, run = StepBook(), UserRun("a")
    for number, minute in ((10, 0), (20, 1), (30, 2)):
        book.add(number, {}, LINE, "", f"2025-03-01 10:{minute:02}:30,500 step {number}")
    settle_steps(run, book)
    assert math.isnan(run.steps[0].seconds)
    assert [step.seconds for step in run.steps[1:]] == [6.0, 6.0]


def test_a_ramp_of_the_batch_has_the_batch_of_each_step() -> None:
    book, run = StepBook(), UserRun("a")
    run.columns |= {name: Fact(value, SaidBy.FLAG) for name, value in (("seq", "1024"), ("num_gpus", "8"))}
    for number, batch in ((1, 32), (2, 64)):
        book.add(number, {"tokens_per_device": 4096.0, "batch": float(batch)}, LINE, "", "")
    settle_steps(run, book)
    assert [(step.batch, step.seconds) for step in run.steps] == [(32, 1.0), (64, 2.0)]
