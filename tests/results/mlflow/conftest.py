"""What tests of MLflow share because it takes seconds to make: an empty store, and a real server."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from results.mlflow.store import QUIET_SETTINGS, artifact_dir, database_path
from tests.results.mlflow.addresses import PATIENCE_SECONDS, free_port, read

USER, PASSWORD = "ada", "analytical-engine"
AUTH = """[mlflow]
default_permission = READ
database_uri = sqlite:///{home}/users.db
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
auth_cache_ttl_seconds = 600
"""
"""The cache spares a tenth of a second for each request, which is what checking a password costs."""


class Remote:
    """An MLflow server whose basic auth knows one user. It may die, and comes back with the store that it had."""

    def __init__(self, home: Path) -> None:
        self.home, self.port = home, free_port()
        (home / "auth.ini").write_text(AUTH.format(home=home))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def address_of(self, user: str, password: str) -> str:
        return f"http://{user}:{password}@127.0.0.1:{self.port}"

    @property
    def tables(self) -> str:
        """The address of the database that is behind it."""
        return f"sqlite:///{database_path(self.home)}"

    def start(self) -> None:
        """Start the server unless it runs, and wait until it answers."""
        if self._process is not None:
            return
        command = [sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth", "--workers", "1"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--backend-store-uri", self.tables]
        command += ["--artifacts-destination", str(artifact_dir(self.home))]
        auth = {"MLFLOW_AUTH_CONFIG_PATH": str(self.home / "auth.ini"), "MLFLOW_FLASK_SERVER_SECRET_KEY": "made-up"}
        auth |= {"MLFLOW_AUTH_ADMIN_USERNAME": USER, "MLFLOW_AUTH_ADMIN_PASSWORD": PASSWORD}
        environment = QUIET_SETTINGS | dict(os.environ) | auth
        with (self.home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        self._wait_until_it_answers(self._process)

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            try:
                read(f"{self.address}/health")
            except OSError:
                time.sleep(0.1)
            else:
                return
        pytest.fail(f"the MLflow server did not start: {(self.home / 'server.log').read_text()[-1000:]}")

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.fixture
def output_dir(tmp_path: Path, empty_store: Path) -> Path:
    """With a store that has MLflow's tables and nothing in them."""
    path = tmp_path / "runs"
    path.mkdir()
    shutil.copy(empty_store, database_path(path))
    return path


@pytest.fixture(scope="session")
def remote(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Remote]:
    """The server, running."""
    server = Remote(tmp_path_factory.mktemp("server"))
    shutil.copy(empty_store, database_path(server.home))
    try:
        server.start()
        yield server
    finally:
        server.kill()
