"""A job that hangs ends by itself and says for whom it waited; with real processes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import torch

from tests.train_core.conftest import AtStep, TrialOf
from train_core.job.failures import first_cause
from train_core.job.trial import run_trial_here
from train_core.parallel.clock import Line
from train_core.process.world import World
from train_core.training.trainer import Trainer
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Outcome
from train_core.watch.watchdog import Watchdog, watch_rank

LONG = {"training.num_steps": 100_000, "watch.hang_seconds": 3.0}
DATA_3 = LONG | {"parallel.world_size": 3, "batch.global_batch_size": 6}
PIPELINE_4 = LONG | {"parallel.world_size": 4, "parallel.pipeline_parallel_size": 4}


def sleep_for_ever(trainer: Trainer) -> None:
    time.sleep(600)


@pytest.mark.slow
@pytest.mark.usefixtures("a_node_for_each_rank")
def test_the_rank_that_sleeps_is_the_cause_and_not_those_that_wait_for_it(trial_of: TrialOf, at_step: AtStep) -> None:
    at_step(2, 3, sleep_for_ever)
    measurement = run_trial_here(trial_of(DATA_3).path)
    assert measurement.outcome is Outcome.FAILED
    assert (measurement.failing_rank, measurement.nodes) == (2, ("node2",))
    assert measurement.cause.startswith("rank 2 has not reached all_reduce over data, ")
    assert "(step 3); ranks 0-1 have been waiting there for" in measurement.cause
    assert measurement.cause.endswith("and rank 2 is at its own work")
    assert "Rank 2 stands here:" in (measurement.traceback or "")
    assert "in sleep_for_ever" in (measurement.traceback or "")


@pytest.mark.thorough  # than test_the_rank_that_sleeps_is_the_cause
@pytest.mark.slow
def test_the_rank_that_sleeps_is_found_under_fully_sharded_weights_too(trial_of: TrialOf, at_step: AtStep) -> None:
    at_step(1, 2, sleep_for_ever)
    measurement = run_trial_here(trial_of(DATA_3 | {"parallel.zero_stage": 3}).path)
    assert measurement.failing_rank == 1
    assert measurement.cause.startswith("rank 1 has not reached all_gather over data, ")


@pytest.mark.slow
def test_a_stopped_stage_is_found_behind_the_stages_that_wait_for_each_other(
    trial_of: TrialOf, at_step: AtStep
) -> None:
    at_step(3, 2, lambda _: os.kill(os.getpid(), signal.SIGSTOP))
    measurement = run_trial_here(trial_of(PIPELINE_4).path)
    assert measurement.failing_rank == 3
    assert measurement.cause.startswith("rank 3 has not sent what rank 2 is to receive, ")
    assert "(step 2, micro-batch 0); rank 2 has been waiting there for" in measurement.cause
    assert measurement.cause.endswith("rank 3 gives no sign of life")


SLEEPING_RANK = """
import sys, time
from pathlib import Path
from train_core.training.trainer import Trainer
from train_core.job.trial import run_trial_as_rank

undisturbed = Trainer.step

def disturbed(self, number, *rest):
    if (self.mesh.world.rank, number) == (1, 2):
        time.sleep(600)
    return undisturbed(self, number, *rest)

Trainer.step = disturbed
run_trial_as_rank(Path(sys.argv[1]))
"""


@pytest.mark.thorough  # than the rank that sleeps
@pytest.mark.slow
def test_a_hang_under_torchrun_ends_the_job_with_the_same_words(trial_of: TrialOf) -> None:
    # Each rank imports torch anew, so that there are no more than it takes.
    trial: TrialFolder = trial_of({**LONG, "parallel.world_size": 2, "batch.global_batch_size": 2})
    script = trial.path / "rank.py"
    script.write_text(SLEEPING_RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    completed = subprocess.run([*command, str(trial.path)], capture_output=True, text=True, timeout=120, check=False)
    assert completed.returncode != 0
    culprit = first_cause(trial.read_failures())
    assert culprit is not None
    assert culprit.blamed == 1
    assert culprit.cause.startswith("rank 1 has not reached all_reduce over data")
    assert culprit.cause in completed.stderr


@pytest.mark.slow
def test_a_rank_that_is_slower_than_the_others_but_comes_is_waited_for(trial_of: TrialOf, at_step: AtStep) -> None:
    at_step(1, 2, lambda _: time.sleep(3))
    patient = DATA_3 | {
        "training.num_steps": 3,
        "watch.hang_seconds": 20.0,
    }  # several looks, and room for a loaded machine
    measurement = run_trial_here(trial_of(patient).path)
    assert measurement.outcome is Outcome.COMPLETED, measurement.cause


@pytest.mark.parametrize("refused", [["write_standing"], ["write_standing", "raise_alarm", "write_failure"]])
def test_a_full_disk_keeps_no_hang_from_its_end(
    refused: list[str], trial_of: TrialOf, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in refused:
        monkeypatch.setattr(TrialFolder, name, refuse)
    world = World(0, 2, torch.device("cpu"), "gloo")
    looking = Watchdog(trial_of(DATA_3), world, hang_seconds=0.08)
    monkeypatch.setattr(os, "_exit", lambda code: looking.ended.set())
    world.clock.waiting = (Line("data", (0, 1), world.clock).start("all_reduce", 8), time.monotonic())
    looking.start()
    assert looking.ended.wait(5.0)
    looking.join()
    assert "rank 1 has not reached all_reduce over data, 1 KiB" in capsys.readouterr().err


def test_the_thread_that_looks_asks_the_gpu_of_its_rank(trial_of: TrialOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new thread's current device is GPU 0, whatever the rank has chosen."""
    chosen = list[tuple[str, torch.device]]()
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: chosen.append((threading.current_thread().name, gpu)))
    with watch_rank(trial_of(DATA_3), World(1, 3, torch.device("cuda", 1), "nccl"), hang_seconds=600.0):
        pass
    assert chosen == [("watchdog", torch.device("cuda", 1))]
