"""The benchmark of what watching costs: it wraps the trainer's step, and so has to follow it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from train_core.process.git_sha import ROOT

MEASURED = """
from benchmarks.overhead import WATCHED, share_of_rank
from benchmarks.trainer import answers_of_ranks, experiment_of

small = {"training.num_steps": 3, "training.num_warmup_steps": 1, "model.num_layers": 1}
print(*answers_of_ranks(experiment_of(WATCHED | small), share_of_rank))
"""


@pytest.mark.thorough  # than train_core/watch/test_watchdog
@pytest.mark.slow
def test_the_share_that_watching_takes_is_measured_in_a_training() -> None:
    """In a process of its own, since ranks are forked, which a process whose torch has run backward cannot do."""
    done = subprocess.run([sys.executable, "-c", MEASURED], cwd=ROOT, capture_output=True, text=True, check=True)
    shares = [float(share) for share in done.stdout.split()]
    assert len(shares) == 2
    assert min(shares) > 0
