"""Secrets get nowhere: neither those of the environment nor those of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import OF_HOOK, OF_JOBS, SECRET, Command


def files_with(secret: str, folder: Path) -> list[str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return [str(path.relative_to(folder)) for path in files if secret.encode() in path.read_bytes()]


@pytest.mark.parametrize("secret", [SECRET, OF_HOOK])
def test_a_measured_sweep_holds_neither_a_variable_of_the_environment_nor_its_webhook(
    secret: str, finished: Path
) -> None:
    """Records, logs, reports, snapshots of the code, the store of MLflow, and what the command said."""
    assert (finished / "runs" / "mlflow.db").exists()
    assert files_with(secret, finished) == []


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (OF_JOBS, "# slurm.environment.MY_KEY=*** from the command line"),
        (f"{OF_JOBS},b", "are several values"),
        (f"{{{OF_JOBS}", "holds characters"),
        ("4711", "# slurm.environment.MY_KEY=*** from the command line"),
        ("[4711]", "must be a text"),
    ],
)
def test_no_message_shows_a_variable_of_jobs(value: str, said: str, tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("show", f"slurm.environment.MY_KEY={value}", cwd=tmp_path)
    words = " ".join((done.stdout + done.stderr).split())
    assert said in words
    assert OF_JOBS not in words
    assert "4711" not in words
