"""The commands as a person runs them: processes of their own, their output and exit codes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.forked_command import Commands

Command = Callable[..., subprocess.CompletedProcess[str]]
TOOLS = ("git", "env")
SECRET = "a-password-that-nobody-writes-down"
SECRETS = dict.fromkeys(("AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "HF_TOKEN", "MLFLOW_TRACKING_PASSWORD"), SECRET)
"""Everybody has such variables; commands run with them, so that any test may look where they have got to."""

OF_HOOK, OF_JOBS = "-".join(("nobody", "knows", "this")), "-".join(("nor", "anybody", "that"))
"""Secrets, in pieces here, as a sweep keeps what has changed in the code and was not committed."""

HOOK = f"https://hooks.example.org/T0/B0/{OF_HOOK}"
SMOKE = (
    "smoke",
    f"+slurm.environment.MY_KEY={OF_JOBS}",
    "tracking.live_seconds=null",
    "sweep.points=[{parallel.world_size: 2, parallel.tensor_parallel_size: 2},"
    "{parallel.world_size: 2, parallel.zero_stage: 1},{parallel.world_size: 3, parallel.tensor_parallel_size: 2}]",
)
"""Half of the smoke sweep: what one rank, two of each kind, and a point that cannot exist leave behind."""


@pytest.fixture(scope="session")
def no_slurm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose PATH holds no Slurm, whatever the machine has."""
    tools = tmp_path_factory.mktemp("bin")
    for tool in TOOLS:
        (tools / tool).symlink_to(shutil.which(tool) or f"/usr/bin/{tool}")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return {**kept, **SECRETS, "PATH": str(tools), "COLUMNS": "100"}


@pytest.fixture(scope="session")
def commands() -> Iterator[Commands]:
    commands = Commands()
    yield commands
    commands.stop()


@pytest.fixture(scope="session")
def trisweep(no_slurm: dict[str, str], commands: Commands) -> Command:
    def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return commands.run(arguments, cwd, {**no_slurm, **environment})

    return run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, trisweep: Command, commands: Commands) -> Path:
    """The sweep `SMOKE`, measured. Most who use it write a report."""
    commands.start()
    folder, webhook = tmp_path_factory.mktemp("finished"), tmp_path_factory.mktemp("own") / "webhook"
    webhook.write_text(HOOK)
    command = f"notify.command='cat {webhook} >&2; exit 1'"
    done = trisweep("sweep", *SMOKE, command, "notify.after_failures=1", "--here", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "said").write_text(done.stdout + done.stderr)
    return folder
