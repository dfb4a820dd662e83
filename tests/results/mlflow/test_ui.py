"""What `serve_ui` refuses, and the guard of its server."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from conf.errors import UsageError
from results.mlflow.store import connect, database_path
from results.mlflow.ui import GUARD, serve_ui
from tests.messages import refused
from tests.results.conftest import SQLITE
from tests.results.mlflow.addresses import PATIENCE_SECONDS, free_port

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # MLflow's own


@pytest.mark.slow
def test_the_guard_ends_a_server_and_its_workers_when_whoever_asked_is_killed(tmp_path: Path) -> None:
    """The server is a shell that starts a worker and would go on for an hour."""
    server = "sleep 3600 & sleep 3600"
    program = (
        "import subprocess, sys, time\n"
        f"command = ['sh', '-c', {GUARD!r}, 'server', 'sh', '-c', {server!r}]\n"
        "guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)\n"
        "print('started', flush=True)\n"
        "time.sleep(3600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(children := psutil.Process(process.pid).children(recursive=True)) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.kill()
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
    assert not alive


def test_without_a_store_it_says_how_to_get_one(tmp_path: Path) -> None:
    with refused(UsageError, "mlflow.db"):
        serve_ui(SQLITE, tmp_path, free_port(), lambda link: None)


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    database_path(tmp_path).touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with refused(UsageError, port):
            serve_ui(SQLITE, tmp_path, port, lambda link: None)


def test_the_servers_command_which_everybody_sees_does_not_hold_the_address_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a database may hold a password."""
    database_path(tmp_path).touch()

    def start(command: list[str], *, env: dict[str, str], **_: object) -> None:
        assert not any("sqlite:" in word for word in command)
        assert env["MLFLOW_BACKEND_STORE_URI"] == f"sqlite:///{database_path(tmp_path)}"
        raise InterruptedError

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(InterruptedError):
        serve_ui(SQLITE, tmp_path, free_port(), lambda link: None)


def test_a_store_that_cannot_be_opened_is_said_at_once(tmp_path: Path) -> None:
    database_path(tmp_path).write_text("this is no database")
    with refused(UsageError, "mlflow.db"):
        serve_ui(SQLITE, tmp_path, free_port(), lambda link: None)


@pytest.mark.thorough  # than test_ui_in_a_browser
@pytest.mark.slow
def test_a_server_that_ends_by_itself_is_said(tmp_path: Path) -> None:
    connect(SQLITE, tmp_path)  # makes the store

    def end_the_server(_: object) -> None:
        for process in psutil.Process().children(recursive=True):
            if process.cmdline()[1:3] == ["-m", "mlflow"]:
                process.kill()

    with refused(UsageError, "404 Not Found", recorded=False):
        serve_ui(SQLITE, tmp_path, free_port(), end_the_server)
