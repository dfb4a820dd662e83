"""The commands as a person runs them: processes of their own, their output and exit codes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forked_command import run_forked

Command = Callable[..., subprocess.CompletedProcess[str]]
TOOLS = ("git", "env")
SECRET = "a-password-that-nobody-writes-down"
SECRETS = dict.fromkeys(("AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "HF_TOKEN", "MLFLOW_TRACKING_PASSWORD"), SECRET)
"""Everybody has such variables; commands run with them, so that any test may look where they have got to."""


@pytest.fixture(scope="session")
def no_slurm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose PATH holds no Slurm, whatever the machine has."""
    tools = tmp_path_factory.mktemp("bin")
    for tool in TOOLS:
        (tools / tool).symlink_to(shutil.which(tool) or f"/usr/bin/{tool}")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return {**kept, **SECRETS, "PATH": str(tools), "COLUMNS": "100"}


@pytest.fixture(scope="session")
def trisweep(no_slurm: dict[str, str]) -> Command:
    def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return run_forked(arguments, cwd, {**no_slurm, **environment})

    return run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, trisweep: Command) -> Path:
    """The smoke sweep, measured."""
    folder = tmp_path_factory.mktemp("finished")
    done = trisweep("sweep", "smoke", "--here", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder
