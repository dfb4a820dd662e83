"""The steps of one start: copies, restarts, ramps and bounded memory."""

from __future__ import annotations

import math

import pytest

from diagnose.readers import read_runs
from diagnose.readers.book import MOST_STEPS, StepBook, settle_steps
from diagnose.runs import Fact, LogLine, SaidBy, UserRun
from tests.diagnose.made_up import Write, megatron_steps

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


def pasted(*times: float) -> str:
    return "".join(
        megatron_steps([each] * 5).replace("lm loss: 9.", f"x{place} loss: 9.") for place, each in enumerate(times)
    )


@pytest.mark.parametrize("text", [pasted(2.5, 2.1), pasted(2.1, 2.5)])
def test_two_runs_with_the_same_steps_are_two(write: Write, text: str) -> None:
    one, two = read_runs([write("both.log", text)])
    assert [step.number for step in one.steps] == [step.number for step in two.steps] == [10, 20, 30, 40, 50]
    assert {one.steps[0].seconds, two.steps[0].seconds} == {2.5, 2.1}


def test_two_runs_whose_bars_have_the_same_steps_are_two(write: Write) -> None:
    bars = [f"{n}0%|###| {n * 50}/500 [01:15<11:15, {rate:.2f}s/it]" for rate in (1.5, 1.2) for n in range(1, 10)]
    one, two = read_runs([write("bars.log", "\n".join(bars))])
    assert [len(run.steps) for run in (one, two)] == [9, 9]
    assert (one.steps[0].seconds, two.steps[0].seconds) == (1.5, 1.2)


def test_copies_of_steps_without_a_rank_are_one_run(write: Write) -> None:
    (run,) = read_runs([write("copies.log", pasted(2.5, 2.51, 2.49))])
    assert [step.seconds for step in run.steps] == [2.5] * 5


def test_samples_since_the_start_tell_the_batch(write: Write) -> None:
    line = (
        "Epoch 0: :   0%| | {0}/500 [01:12<1:1, reduced_train_loss=9.90, global_step={0}.000, consumed_samples={1}.0, "
    )
    text = "".join(line.format(n, n * 128) + "train_step_timing in s=4.5]\n" for n in (9, 19, 29))
    (run,) = read_runs([write("nemo.log", text)])
    assert run.columns["global_batch"].value == "128"


def test_two_rates_of_a_line_tell_the_devices(write: Write) -> None:
    text = "iteration: {0} / 100 | elapsed_time_per_iteration_ms: 1.24K | tokens_per_sec: 845K | lm_loss: 9.{0} | "
    text += "tokens_per_sec_per_gpu: 52.8K | model_tflops_per_gpu: 505 | cuda_max_memory_reserved: 21.4G\n"
    (run,) = read_runs([write("nanotron.log", "".join(map(text.format, (1, 2, 3))))])
    assert run.columns["num_gpus"].value == "16"
    assert run.steps[0].memory_bytes == 21.4e9


def test_of_very_many_bars_every_eighth_is_read(write: Write) -> None:
    bars = "".join(f"\r  1%|#| {n}/20000 [01:15<11:15,  1.5{n % 10}s/it]" for n in range(1, 12_001))
    (run,) = read_runs([write("bars.log", bars + "\n{'loss': 2.5, 'epoch': 1.0}\n")])
    assert 5_000 < len(run.steps) < 6_500
    assert run.steps[-1].loss == 2.5
    assert sum(step.seconds for step in run.steps) / len(run.steps) == pytest.approx(1.545, abs=0.01)


def test_two_runs_of_two_lines_each_are_two(write: Write) -> None:
    text = megatron_steps([3.1, 3.0]) + "with tp 8\n" + megatron_steps([2.8, 2.7])
    assert [len(run.steps) for run in read_runs([write("both.log", text)])] == [2, 2]


def test_a_bar_whose_end_is_not_known_is_read(write: Write) -> None:
    bars = "".join(f"\rEpoch 0: |          | {n}/? [00:21<00:00,  0.50it/s, v_num=x, loss=9.1]" for n in (10, 20, 30))
    (run,) = read_runs([write("bars.log", bars)])
    assert [step.seconds for step in run.steps] == [2.0] * 3
