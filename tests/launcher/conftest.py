"""Small sweeps to run on this machine, and a progress that stays silent."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from conf.types.sites import SlurmSpec
from launcher.control.workplace import ProgressDisplay
from sweeps.folder.submission import JobShape, Submission
from sweeps.trial import SweepFolder
from tests.composed import load
from tests.conftest import BuildRecord, RecordOf

Tools = Callable[..., None]
SlurmOf = Callable[..., SlurmSpec]
"""`slurm_of("override", ...)`: the settings for Slurm."""


class Silent(ProgressDisplay):
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.lines: list[str] = []

    def show(self, states: Sequence[Any]) -> None:
        self.shown.append(list(states))

    def say(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def progress() -> Silent:
    return Silent()


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    return SweepFolder(tmp_path / "runs" / "test-local")


@pytest.fixture(scope="session")
def slurm_of() -> SlurmOf:
    return lambda *overrides: load(overrides).slurm


@pytest.fixture(scope="session")
def record_of(build_record: BuildRecord) -> RecordOf:
    return lambda points, *overrides: build_record(points, overrides)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """`tools(squeue="script", sacct="script")`: stand-ins for answers that a real Slurm gives only now and then."""
    folder = tmp_path / "tools"
    folder.mkdir()

    def install(**scripts: str) -> None:
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)

    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/bin")
    return install


@pytest.fixture
def slurm_submission(tmp_path: Path) -> Callable[..., Submission]:
    """`slurm_submission("12_0", job_name="...", cluster="...")`, a few minutes old."""
    common = {
        "executor": "slurm",
        "hostname": "login",
        "attempt": 1,
        "submitted": time.time() - 300,
        "shape": JobShape(num_nodes=1, tasks_per_node=1, uses_gpus=False),
        "output": str(tmp_path / "%j_%t_log.out"),
        "error": str(tmp_path / "%j_%t_log.err"),
    }
    return lambda job_id, **more: Submission.model_validate({**common, "job_id": job_id, **more})
