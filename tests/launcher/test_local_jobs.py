"""Jobs of this machine: who looks for one finds it from its first instant."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import psutil
import pytest

from launcher.job_payload import FolderWork
from launcher.local.machine import start_job, supervisor_of
from sweeps.folder.submission import JobShape, read_submission
from train_core.trial.folder import TrialFolder

NUM_LOOKS = 3


def nothing(folder: str, devices: tuple[int, ...], time_limit_seconds: float | None) -> None:
    pass


def test_a_job_is_found_as_soon_as_it_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On busy cores every tenth process had no command line yet when its start had returned."""
    looks, cmdline = Counter[int](), psutil.Process.cmdline

    def empty_at_first(process: psutil.Process) -> list[str]:
        looks[process.pid] += 1
        return [] if looks[process.pid] <= NUM_LOOKS else cmdline(process)

    monkeypatch.setattr(psutil.Process, "cmdline", empty_at_first)
    trial = TrialFolder(tmp_path / "trial")
    trial.logs.mkdir(parents=True)
    shape = JobShape(num_nodes=1, tasks_per_node=1, uses_gpus=False)
    process = start_job(nothing, FolderWork(trial, 1), shape, tmp_path, devices=(), time_limit_seconds=None)
    submission = read_submission(trial)
    assert submission is not None
    found = supervisor_of(submission)
    process.kill()
    process.wait()
    assert found is not None
