"""Stores on servers: a real PostgreSQL, and an MLflow server that dies."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conf.errors import UsageError
from conf.sites import TrackingSpec
from results.mlflow.store import QUIET_SETTINGS
from results.mlflow.sweep_import import import_sweep
from results.mlflow.writer import Writer
from tests.results.conftest import SQLITE, WriteSweep
from tests.results.mlflow.test_stores import HOW, TRIALS, contents_of
from tests.results.mlflow.test_ui import PATIENCE_SECONDS, free_port, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),  # MLflow's own
]


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an empty database on a server of its own, which takes whoever comes from this machine."""
    programs = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), None)
    if programs is None:
        pytest.skip("there is no PostgreSQL server here (Debian's package is postgresql)")
    home, port = tmp_path_factory.mktemp("postgresql"), free_port()
    user = as_owner_of(home)
    subprocess.run(
        [str(programs / "initdb"), "-A", "trust", "-U", "ada", "-D", str(home / "data")],
        check=True,
        capture_output=True,
        **user,
    )
    command = [str(programs / "postgres"), "-D", str(home / "data"), "-p", str(port), "-k", str(home)]
    command += ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, **user)
    try:
        wait_for_port(port, process)
        yield f"postgresql://ada@127.0.0.1:{port}/postgres"
    finally:
        process.send_signal(signal.SIGQUIT)  # at once, as nobody wants the data again
        process.wait(PATIENCE_SECONDS)


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        assert process.poll() is None
        assert time.monotonic() < deadline
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return


def as_owner_of(home: Path) -> dict[str, Any]:
    """Who the server runs as: PostgreSQL refuses to be root's."""
    if os.geteuid() != 0:
        return {}
    other = pwd.getpwnam("postgres")
    for folder in (home, *home.parents):
        if folder == Path("/tmp"):
            break
        folder.chmod(0o755)
    os.chown(home, other.pw_uid, other.pw_gid)
    return {"user": other.pw_uid, "group": other.pw_gid}


def test_postgresql_holds_the_same_as_sqlite_and_takes_it_once(
    postgresql: str, write_sweep: WriteSweep, tmp_path: Path
) -> None:
    sweep = write_sweep(TRIALS, HOW)
    database = TrackingSpec(kind="database", uri=postgresql, experiment="made-up")
    first = import_sweep(sweep, database, tmp_path / "postgresql")
    again = import_sweep(sweep, database, tmp_path / "postgresql")
    assert (first.created, again.created, again.unchanged) == (5, 0, 5)
    import_sweep(sweep, SQLITE, tmp_path / "sqlite")
    assert contents_of(tmp_path / "postgresql", database) == contents_of(tmp_path / "sqlite")


def serve(home: Path, port: int, *options: str, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{home}/server.db", "--artifacts-destination", str(home / "files")]
    with (home / "server.log").open("ab") as log:
        return subprocess.Popen(
            [*command, *options],
            stdout=log,
            stderr=log,
            env=QUIET_SETTINGS | dict(os.environ) | environment,
            start_new_session=True,
        )


def kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_server_that_dies_in_the_middle_is_continued_later_without_duplicates(
    write_sweep: WriteSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, port = write_sweep(TRIALS, HOW), free_port()
    tracking = TrackingSpec(kind="server", uri=f"http://127.0.0.1:{port}", experiment="made-up")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    process = serve(tmp_path, port)
    try:
        wait_for(f"http://127.0.0.1:{port}", process)
        close, closed = Writer._close, list[str]()

        def die_at_the_third(writer: Writer, run_id: str, content: Any) -> None:
            close(writer, run_id, content)
            closed.append(run_id)
            if len(closed) == 3:  # its metrics are still to come
                kill(process)

        monkeypatch.setattr(Writer, "_close", die_at_the_third)
        with pytest.raises(UsageError, match="import again once the store works"):
            import_sweep(sweep, tracking, tmp_path)
        monkeypatch.setattr(Writer, "_close", close)
        process = serve(tmp_path, port)
        wait_for(f"http://127.0.0.1:{port}", process)
        done = import_sweep(sweep, tracking, tmp_path)
        assert (done.created, done.updated, done.unchanged) == (2, 1, 2)
        import_sweep(sweep, SQLITE, tmp_path / "sqlite")
        assert contents_of(tmp_path, tracking) == contents_of(tmp_path / "sqlite")
    finally:
        kill(process)
