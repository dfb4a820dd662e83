"""The doctor's job that ends early: its reason is found wherever a rank wrote it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from launcher.doctor.node_report import DoctorFolder, DoctorPlan
from launcher.doctor.tiny_job import _Wait
from launcher.slurm.query import SlurmJobState
from sweeps.folder.submission import Submission

MISSING = "ModuleNotFoundError: No module named 'pydantic'"


def test_the_reason_is_that_of_the_rank_that_failed_first_whichever_it_is(
    slurm_submission: Callable[..., Submission], tmp_path: Path
) -> None:
    """srun ends the other rank, perhaps before it has written anything."""
    submission = slurm_submission("7")
    submission.error_of(0).write_text("srun: error: node2: task 1: Exited with exit code 1\n")
    submission.error_of(1).write_text(f"Traceback (most recent call last):\n{MISSING}\n")
    plan = DoctorPlan(token="token", kind="cpu", num_ranks=2)
    end = _Wait(DoctorFolder(tmp_path), submission, plan, print)._end_in_state(SlurmJobState("FAILED", time.time()))
    assert end.trouble == f"it ended early ({MISSING})"
