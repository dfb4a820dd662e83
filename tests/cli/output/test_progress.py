"""What a person sees while a sweep runs."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Protocol, cast

import pytest
from rich.console import Console

from cli.output.progress import LiveProgress, PlainProgress, SweepUnderWay, progress_on, sweep_seconds_left
from cli.output.state_table import duration, state_table, trial_seconds_left
from conf.types.sweep_spec import Objective
from launcher.slurm.query import SlurmJobState
from sweeps.folder.submission import write_submission
from sweeps.reading import Reading, TrialReading
from tests.results.conftest import experiment, in_slurm, performance, step
from tests.results.conftest import trial as made_up_trial
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Measurement, Outcome

EXPERIMENT = experiment()
LONG_NAME = "tp2-pp2-dp2-mb1-gb8-sp-zero1-full-3598a7-and-a-name-that-is-far-too-long-for-eighty-columns"
RATE = 5.4e10
OBJECTIVES: tuple[Objective, ...] = ("loss", "throughput")


class Read(Protocol):
    """`read(stage, name)`: the reading of a trial that waits, runs, is done or failed, from a folder that says so."""

    def __call__(self, stage: str, name: str = "") -> Reading: ...


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def build(stage: str, name: str = "") -> Reading:
        folder = TrialFolder(tmp_path / (name or stage))
        folder.path.mkdir(exist_ok=True)
        if stage in ("runs", "done"):
            write_submission(folder, in_slurm(folder).model_copy(update={"submitted": 1000.0}))
            told = {"num_steps": 6, "step_seconds": 2.5, "model_flops_per_second_per_device": RATE, "loss": 5.3951}
            folder.append_metrics(step(6 if stage == "done" else 2).model_copy(update=told))
        if stage in ("done", "failed"):
            folder.write_measurement(measurement(stage))
        job = SlurmJobState("RUNNING") if stage == "runs" else None
        return Reading(folder=folder, experiment=EXPERIMENT, job=job)

    return build


def measurement(stage: str) -> Measurement:
    has_failed = stage == "failed"
    measured = performance(1.0, model_flops_per_second_per_device=RATE, final_loss=5.3951)
    return Measurement(
        fingerprint=EXPERIMENT.fingerprint,
        outcome=Outcome.FAILED if has_failed else Outcome.COMPLETED,
        cause="ValueError: bad" if has_failed else "",
        performance=None if has_failed else measured,
        started=1.0 if has_failed else 900.0,
        ended=2.0 if has_failed else 960.0,
    )


@pytest.mark.parametrize(
    ("width", "numbers"), [(80, ("2/6", "0.0540")), (120, ("2/6", "0.0540", "5.395", "10s"))], ids=["80", "120"]
)
def test_a_terminal_shows_as_many_numbers_as_fit_its_width(read: Read, width: int, numbers: tuple[str, ...]) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=width, height=30, color_system=None, legacy_windows=False)
    with LiveProgress(console) as progress:
        progress.show([read("done"), read("runs"), read("waits", LONG_NAME), read("failed")])
    text = stream.getvalue()
    row = next(line for line in text.splitlines() if line.startswith("runs"))
    assert all(part in row for part in ("RUNNING", *numbers))
    lines = [line.replace("\x1b[2K", "").replace("\x1b[1A", "") for line in text.splitlines()]
    assert max(len(line) for line in lines if "\x1b" not in line) <= width
    assert "2 of 4 trials ended" in text


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_narrow_terminal_goes_without_numbers_before_names(read: Read, objective: Objective) -> None:
    console = Console(file=io.StringIO(), width=40, color_system=None)
    with console.capture() as shown:
        console.print(state_table([read("runs", "lr=0.001-wd=0.1"), read("failed")], 40, sought=(objective,)))
    head, row, *_ = shown.get().splitlines()
    assert row.startswith("lr=0.001-")
    assert "RUNNING" in row
    assert ("5.395" in row) is (objective == "loss")
    assert "nodes" not in head
    assert len(head.rstrip()) <= 40


@pytest.mark.parametrize("width", [100, 200])
def test_where_the_loss_is_sought_it_stands_before_rates(read: Read, width: int) -> None:
    heads = []
    for objective in OBJECTIVES:
        console = Console(file=io.StringIO(), width=width, color_system=None)
        with console.capture() as shown:
            console.print(state_table([read("runs")], width, sought=(objective,)))
        heads.append(shown.get().splitlines()[0].split())
    sought, plain = heads
    assert sought.index("step") < sought.index("loss") < sought.index("TFLOPS") < sought.index("left")
    assert plain.index("TFLOPS") < plain.index("loss") < plain.index("left")


@pytest.mark.parametrize(("logged", "ends"), [("", 80), ("epoch 1", 200)])
def test_a_wide_table_is_stretched_for_a_log_alone(read: Read, logged: str, ends: int) -> None:
    reading = read("runs")
    reading.folder.logs.mkdir()
    (reading.folder.logs / "rank-0.out").write_text(logged)
    reading.folder.submission.unlink()
    console = Console(file=io.StringIO(), width=200, color_system=None)
    with console.capture() as shown:
        console.print(state_table([reading], 200))
    head, row = shown.get().splitlines()
    assert ("last line of the log" in head) is bool(logged)
    assert len(head.rstrip()) <= ends
    assert logged in row


@pytest.mark.parametrize(
    ("loss", "shown"), [(2.5, " 2.500 "), (2.5309, " 2.531 "), (float("nan"), " nan "), (0.0, " 0 ")]
)
def test_losses_keep_their_zeros_so_that_they_can_be_compared_down_a_column(
    read: Read, loss: float, shown: str
) -> None:
    running = read("runs")
    running.folder.append_metrics(step(3).model_copy(update={"loss": loss}))
    console = Console(file=io.StringIO(), width=120, color_system=None)
    with console.capture() as printed:
        console.print(state_table([running], 120))
    assert shown in printed.get().splitlines()[1]


def test_a_loss_that_is_sought_is_seen_at_80_columns(read: Read) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, height=30, color_system=None)
    with LiveProgress(console, SweepUnderWay(("loss",))) as progress:
        progress.show([read("runs"), read("done")])
    row = next(line for line in stream.getvalue().splitlines() if line.startswith("runs"))
    assert "5.395" in row


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_search_that_may_ask_for_more_does_not_read_as_finished(read: Read, is_terminal: bool) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=is_terminal, width=80, height=30, color_system=None)
    with progress_on(console, SweepUnderWay(may_grow=True)) as progress:
        progress.show([cast("TrialReading", read("runs", "one"))])
        progress.show([cast("TrialReading", read("done", "one"))])
    assert "1 of 1 trial so far ended" in stream.getvalue()


def test_a_terminal_says_why_a_trial_failed(read: Read) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, height=30, color_system=None)
    with LiveProgress(console) as progress:
        progress.show([read("runs"), read("failed")])
    assert "failed: ValueError: bad" in stream.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_line_that_is_no_state_of_a_trial_is_shown_whole(read: Read, is_terminal: bool) -> None:
    stream, line = io.StringIO(), f"A step failed: [bold] {'x' * 100}"
    console = Console(file=stream, force_terminal=is_terminal, width=80, height=30, color_system=None)
    with LiveProgress(console) if is_terminal else PlainProgress(console) as progress:
        progress.show([read("runs")])
        progress.say(line)
    assert line in stream.getvalue()


def test_a_terminal_that_is_too_low_shows_the_running_trials_first(read: Read) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, height=10, color_system=None)
    with LiveProgress(console) as progress:
        progress.show([*(read("waits", f"waits{n}") for n in range(50)), read("runs")])
    assert "runs" in stream.getvalue()


def test_a_pipe_gets_one_plain_line_per_event(read: Read) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=80)
    progress = progress_on(console)
    assert isinstance(progress, PlainProgress)
    failed = read("failed")
    with progress:
        progress.show([read("waits", "one"), failed])
        progress.show([read("waits", "one"), failed])
        progress.show([read("runs", "one"), failed])
        progress.show([read("done", "one"), failed])
    lines = stream.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["started", "finished"]
    assert "0.054 TFLOPS per device, loss 3.208 [2 of 2 trials ended]" in lines[1]
    assert "\x1b" not in stream.getvalue()


def test_a_failure_tells_its_cause(read: Read) -> None:
    stream = io.StringIO()
    with PlainProgress(Console(file=stream)) as progress:
        progress.show([read("runs", "one")])
        progress.show([read("failed", "one")])
    assert "FAILED after 1s; ValueError: bad" in stream.getvalue()


def test_time_left_follows_from_what_ended(read: Read) -> None:
    running, waiting = read("runs"), read("waits")
    assert trial_seconds_left(running) == 10
    assert sweep_seconds_left([running, waiting], now=time.time()) is None
    assert sweep_seconds_left([read("done"), running, waiting], now=1020.0) == pytest.approx(2 * 60 - 20)
    overdue = sweep_seconds_left([read("done"), running], now=1100.0)
    assert overdue is None  # and not 0 s
    assert [duration(seconds) for seconds in (42, 185, 7620, 500_000)] == ["42s", "3m05s", "2h07m", "5d18h"]


def test_time_left_of_a_stage_follows_from_the_same_stage(read: Read) -> None:
    """A training took 60 s and an evaluation 5 s; a training and two evaluations are to come."""

    def of_stage(reading: Reading, stage: str, seconds: float | None = None) -> Reading:
        if seconds is not None:
            measured = measurement("done").model_copy(update={"started": 900.0, "ended": 900.0 + seconds})
            reading.folder.write_measurement(measured)
        trial = made_up_trial(reading.name).model_copy(update={"stage": stage})
        return TrialReading(folder=reading.folder, experiment=EXPERIMENT, job=reading.job, trial=trial)

    waiting = [of_stage(read("waits", name), stage) for name, stage in (("a", ""), ("b", "score"), ("c", "score"))]
    trained = of_stage(read("done", "d"), "")
    assert sweep_seconds_left([trained, *waiting], now=1000.0) is None
    scored = of_stage(read("done", "e"), "score", 5.0)
    assert sweep_seconds_left([trained, scored, *waiting], now=1000.0) == pytest.approx(60 + 2 * 5)
