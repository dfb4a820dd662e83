"""Signals to a training that has checkpoints: every rank stops after the same step, and the same command goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from conf.plan.experiment import Experiment
from tests.train_core.conftest import ExperimentOf, Worlds
from train_core.job import supervisor
from train_core.process.stop import (
    STOP_SIGNALS,
    Stopped,
    StopSwitch,
    cancelled_by_signals,
    never,
    noted_signals,
    saves_when_stopped,
)
from train_core.process.world import World
from train_core.training.train import train
from train_core.trial.folder import TrialFolder


def stopped_at(world: World, experiment: Experiment, cache: Path) -> tuple[int, int]:
    """One rank alone hears a signal, while the second step runs."""
    answers: Iterator[int] = iter([0, signal.SIGUSR2 if world.rank == 1 else 0])
    with pytest.raises(Stopped) as caught:
        train(experiment, world, cache, stop_asked=lambda: next(answers))
    return caught.value.step, caught.value.number


@pytest.mark.slow
def test_all_ranks_stop_after_the_same_step_when_one_of_them_hears_a_signal(
    experiment_of: ExperimentOf, worlds: Worlds, tmp_path: Path
) -> None:
    experiment = experiment_of({"parallel.world_size": 2, "parallel.tensor_parallel_size": 2})
    assert worlds(2).run(stopped_at, experiment, tmp_path) == [(2, signal.SIGUSR2)] * 2


def test_a_warning_after_sigterm_does_not_bring_back_what_is_to_end() -> None:
    switch = StopSwitch()
    for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGUSR2):
        switch.note(number, None)
    assert switch() == signal.SIGTERM


def test_a_second_request_ends_at_once_and_two_signals_of_one_request_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([10.0, 10.001, 12.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    switch = StopSwitch()
    for _ in range(2):  # as `timeout -s INT` sends them
        switch.turn(signal.SIGINT, None)
    assert switch() == signal.SIGINT
    with pytest.raises(SystemExit) as caught:
        switch.turn(signal.SIGINT, None)
    assert caught.value.code == 128 + signal.SIGINT


def in_supervisor(experiment: Experiment, note: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    with cancelled_by_signals(StopSwitch() if saves_when_stopped(experiment) else None):
        note()


def in_rank_of_launcher(experiment: Experiment, note: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    noted_signals(experiment)
    note()


def in_rank_of_supervisor(experiment: Experiment, note: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    for name in ("_die_with", "_redirect_output"):
        patch.setattr(supervisor, name, lambda *_: None)
    patch.setattr(supervisor, "_run", lambda *_: note())
    start = supervisor.RankStart(Path(), 1, 2, Path(), None, 0)
    supervisor.rank_process(start, Mock(), StopSwitch() if saves_when_stopped(experiment) else never)


@pytest.fixture
def signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals_as_before")
@pytest.mark.parametrize("every_steps", [None, 2])
@pytest.mark.parametrize("where", [in_supervisor, in_rank_of_launcher, in_rank_of_supervisor])
def test_no_process_of_a_training_dies_of_the_warning_before_the_time_limit(
    where: Any, every_steps: int | None, experiment_of: ExperimentOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = list[Any]()
    experiment = experiment_of({"checkpoint.every_steps": every_steps})
    where(experiment, lambda: noted.extend(map(signal.getsignal, STOP_SIGNALS)), monkeypatch)
    on_term, on_warning = noted
    assert on_warning is not signal.SIG_DFL
    if every_steps is None:
        assert on_warning is signal.SIG_IGN
        assert on_term is not signal.SIG_IGN


COMMAND = [str(Path(sys.executable).with_name("trisweep")), "train"]
LONG = [
    *("model.num_layers=2", "model.seq_length=32", "batch.global_batch_size=2", "training.num_steps=40"),
    *("data.max_bytes=20000", "checkpoint=regular", "checkpoint.every_steps=1000"),
    *("parallel.world_size=2", "parallel.tensor_parallel_size=2"),
]


def losses_in(folder: Path) -> list[tuple[int, float]]:
    (trial,) = (folder / "train").iterdir()
    lines = [json.loads(line) for line in TrialFolder(trial).metrics.read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines]


@pytest.mark.thorough  # than training/test_resume and the ranks that stop together
@pytest.mark.slow
def test_a_training_that_gets_sigterm_saves_and_goes_on_to_the_same_losses_bit_for_bit(tmp_path: Path) -> None:
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    command = [*COMMAND, *LONG, f"output_dir={halved}"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert next(line for line in run.stdout if line.startswith("step"))
    os.kill(run.pid, signal.SIGTERM)
    _, said = run.communicate(timeout=120)
    assert run.returncode == 128 + signal.SIGTERM, said
    assert "The same command goes on from there" in said
    assert 0 < len(losses_in(halved)) < 40
    for folder in (halved, whole):
        subprocess.run([*COMMAND, *LONG, f"output_dir={folder}"], capture_output=True, timeout=120, check=True)
    assert losses_in(halved) == losses_in(whole)
    assert [step for step, _ in losses_in(halved)] == list(range(1, 41))
