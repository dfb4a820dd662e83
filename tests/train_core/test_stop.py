"""Signals to a training that has checkpoints: every rank stops after the same step, and nothing is taken for a failure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from train_core.measurement import StepMetrics
from train_core.stop import Stopped
from train_core.train import train
from train_core.trial_folder import TrialFolder
from train_core.world import World


def stopped_at(world: World, experiment: Any, cache: Path) -> tuple[int, int]:
    """One rank alone hears a signal, while the second step runs."""
    answers: Iterator[int] = iter([0, signal.SIGUSR2 if world.rank == 1 else 0])
    with pytest.raises(Stopped) as caught:
        train(experiment, world, cache, stop_asked=lambda: next(answers))
    return caught.value.step, caught.value.number


def test_all_ranks_stop_after_the_same_step_when_one_of_them_hears_a_signal(
    experiment_of: Any, worlds: Any, tmp_path: Path
) -> None:
    experiment = experiment_of({"parallel.world_size": 2, "parallel.tensor_parallel_size": 2})
    assert worlds(2).run(stopped_at, experiment, tmp_path) == [(2, signal.SIGUSR2)] * 2
