"""The doctor's job that ends early: its reason is found wherever a rank wrote it."""

from __future__ import annotations

import time
from pathlib import Path

from launcher.doctor.node_report import DoctorFolder, DoctorPlan
from launcher.doctor.tiny_job import _Wait
from launcher.slurm.query import SlurmJobState
from sweeps.folder.submission import JobShape, Submission

MISSING = "ModuleNotFoundError: No module named 'pydantic'"


def test_the_reason_is_that_of_the_rank_that_failed_first_whichever_it_is(tmp_path: Path) -> None:
    """srun ends the other rank, perhaps before it has written anything."""
    submission = Submission(
        executor="slurm",
        job_id="7",
        hostname="login",
        attempt=1,
        submitted=time.time(),
        shape=JobShape(num_nodes=2, tasks_per_node=1, uses_gpus=False),
        output=str(tmp_path / "7_%t.out"),
        error=str(tmp_path / "7_%t.err"),
    )
    submission.error_of(0).write_text("srun: error: node2: task 1: Exited with exit code 1\n")
    submission.error_of(1).write_text(f"Traceback (most recent call last):\n{MISSING}\n")
    plan = DoctorPlan(token="token", kind="cpu", num_ranks=2)
    end = _Wait(DoctorFolder(tmp_path), submission, plan, print)._end_in_state(SlurmJobState("FAILED", time.time()))
    assert end.trouble == f"it ended early ({MISSING})"
