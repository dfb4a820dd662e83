"""What a person sees while a sweep runs."""

from __future__ import annotations

import io
import time
from dataclasses import replace

import pytest
from rich.console import Console

from cli.progress import LiveProgress, PlainProgress, duration, progress_on, sweep_seconds_left, trial_seconds_left
from launcher.state import TrialState
from train_core.measurement import Outcome

WAITING = TrialState(
    trial_id="tp2-pp2-dp2-mb1-gb8-sp-zero1-full-3598a7-and-a-name-that-is-far-too-long-for-eighty-columns",
    outcome=Outcome.PENDING,
    cause="",
    failing_rank=None,
    traceback=None,
    job_id=None,
    scheduler_state=None,
    attempt=0,
    num_steps_done=0,
    num_steps=10,
    step_seconds=None,
    model_flops_per_second_per_device=None,
    loss=None,
    last_log_line="",
    log=None,
    started=None,
    ended=None,
    quarantined=(),
)
RUNNING = replace(
    WAITING,
    trial_id="runs",
    outcome=Outcome.RUNNING,
    num_steps_done=4,
    step_seconds=2.5,
    model_flops_per_second_per_device=5.4e10,
    loss=5.3951,
    started=1000.0,
)
DONE = replace(RUNNING, trial_id="done", outcome=Outcome.COMPLETED, num_steps_done=10, started=900.0, ended=960.0)
FAILED = replace(WAITING, trial_id="bad", outcome=Outcome.FAILED, cause="ValueError: bad", started=1.0, ended=2.0)


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_state_step_tflops_loss_and_time_left_within_its_width(width):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=width, height=30, color_system=None, legacy_windows=False)
    with LiveProgress(console) as progress:
        progress.show([DONE, RUNNING, WAITING, FAILED])
    text = stream.getvalue()
    row = next(line for line in text.splitlines() if line.startswith("runs"))
    assert all(part in row for part in ("RUNNING", "4/10", "0.054", "5.395", "15s"))
    lines = [line.replace("\x1b[2K", "").replace("\x1b[1A", "") for line in text.splitlines()]
    assert max(len(line) for line in lines if "\x1b" not in line) <= width
    assert "2 of 4 trials ended" in text


def test_a_terminal_that_is_too_low_shows_the_running_trials_first():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, height=10, color_system=None)
    with LiveProgress(console) as progress:
        progress.show([*(replace(WAITING, trial_id=f"waits{n}") for n in range(50)), RUNNING])
    assert "runs" in stream.getvalue()


def test_a_pipe_gets_one_plain_line_per_event():
    stream = io.StringIO()
    console = Console(file=stream, width=80)
    progress = progress_on(console)
    assert isinstance(progress, PlainProgress)
    with progress:
        progress.show([WAITING, FAILED])
        progress.show([WAITING, FAILED])
        progress.show([replace(RUNNING, trial_id=WAITING.trial_id), FAILED])
        progress.show([replace(DONE, trial_id=WAITING.trial_id), FAILED])
    lines = stream.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["started", "finished"]
    assert "0.054 TFLOPS per device, loss 5.395 [2 of 2 trials ended]" in lines[1]
    assert "\x1b" not in stream.getvalue()


def test_a_failure_tells_its_cause():
    stream = io.StringIO()
    with PlainProgress(Console(file=stream)) as progress:
        progress.show([RUNNING])
        progress.show([replace(FAILED, trial_id="runs")])
    assert "FAILED after 1s; ValueError: bad" in stream.getvalue()


def test_time_left_follows_from_what_ended():
    assert trial_seconds_left(RUNNING) == 15
    assert sweep_seconds_left([RUNNING, WAITING], now=time.time()) is None
    assert sweep_seconds_left([DONE, RUNNING, WAITING], now=1020.0) == pytest.approx(2 * 60 - 20)
    assert [duration(seconds) for seconds in (42, 185, 7620)] == ["42s", "3m05s", "2h07m"]
