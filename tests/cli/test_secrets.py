"""Secrets get nowhere: neither those of the environment nor those of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import SECRET, Command

HOOK = "https://hooks.example.org/T0/B0/the-secret-of-the-webhook"


def files_with(secret: str, folder: Path) -> list[str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return [str(path.relative_to(folder)) for path in files if secret.encode() in path.read_bytes()]


def test_a_measured_sweep_holds_no_variable_of_the_environment(finished: Path) -> None:
    """Records, logs, reports, snapshots of the code, and the store of MLflow."""
    assert (finished / "runs" / "mlflow.db").exists()
    assert files_with(SECRET, finished) == []


@pytest.mark.slow
def test_a_webhook_that_was_given_in_the_command_is_in_no_file(tmp_path: Path, trisweep: Command) -> None:
    points = ("sweep.points=[]", "training.num_steps=2", "training.num_warmup_steps=1")
    done = trisweep("sweep", "smoke", "--here", f"notify.url={HOOK}", "notify.after_failures=1", *points, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert files_with("the-secret-of-the-webhook", tmp_path) == []
    assert "the-secret-of-the-webhook" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "smoke", "--cfg", f"notify.url={HOOK}"),
        ("plan", "smoke", f"notify.url={HOOK}", "notify.style=none-such"),
        ("plan", "smoke", f"notify.url='{HOOK}' x"),
        ("plan", "smoke", f"notify.url=[{HOOK}"),
        ("plan", "smoke", f"notify.url=ftp:{HOOK}"),
    ],
    ids=["cfg", "another key", "two words", "no value", "no address"],
)
def test_no_message_shows_a_webhook(arguments: tuple[str, ...], tmp_path: Path, trisweep: Command) -> None:
    done = trisweep(*arguments, cwd=tmp_path)
    assert done.stdout + done.stderr
    assert "the-secret-of-the-webhook" not in "".join((done.stdout + done.stderr).split())
