"""A full disk keeps no cause from the person at the keyboard, and once there is room the training goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.train_core.conftest import TrialOf
from train_core.job.trial import run_trial_here
from train_core.trial.measurement import Outcome

FULL_FROM_STEP_3 = """
import resource, sys
from pathlib import Path
from conf.errors import UsageError
from train_core.job.trial import run_trial_here
from train_core.training.trainer import Trainer

def fill():
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # no file takes one more byte

undisturbed = Trainer.step

def disturbed(trainer, step, *rest):
    if step == 3:
        fill()
    return undisturbed(trainer, step, *rest)

Trainer.step = disturbed
try:
    run_trial_here(Path(sys.argv[1]), on_step=lambda metrics: fill())
except UsageError as error:
    print(error)
"""


@pytest.mark.thorough  # than job/test_trial
@pytest.mark.slow
def test_the_cause_is_said_though_no_file_takes_it_and_the_same_trial_goes_on_later(trial_of: TrialOf) -> None:
    values = {"parallel.world_size": 2, "training.num_steps": 6, "checkpoint.every_steps": 2}
    trial = trial_of(values)
    command = [sys.executable, "-c", FULL_FROM_STEP_3, str(trial.path)]
    ended = subprocess.run(
        command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.stdout.startswith("FAILED: rank "), ended.stderr
    assert f" to {trial.checkpoints}" in ended.stdout
    assert f"Nor could {trial.measurement} be written (File too large). Make room there" in ended.stdout
    assert trial.read_failures() == []
    assert not trial.measurement.exists()
    measurement = run_trial_here(trial.path)
    assert measurement.outcome is Outcome.COMPLETED, measurement.cause
    assert measurement.performance is not None
    assert len(measurement.performance.losses) == 6
    assert [metrics.step for metrics in trial.read_metrics()] == [1, 2, 3, 4, 5, 6]
