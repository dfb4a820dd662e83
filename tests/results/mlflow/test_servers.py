"""Stores on servers: a real PostgreSQL, and an MLflow server that asks for a password and dies."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from conf.errors import UsageError
from conf.types.sites import TrackingSpec
from results.mlflow.store import connect, database_path
from results.mlflow.sweep_import import import_sweep
from results.mlflow.ui import Links, serve_ui
from results.mlflow.writer import RunWriter
from tests.messages import refused
from tests.results.conftest import SQLITE, WriteSweep
from tests.results.mlflow.addresses import PATIENCE_SECONDS, free_port
from tests.results.mlflow.conftest import PASSWORD, USER, Remote
from tests.results.mlflow.test_stores import HOW, TRIALS, contents_of, runs_in

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),  # MLflow's own
]


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """The address of an empty database on a server of its own, which takes whoever comes from this machine."""
    programs = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), None)
    if programs is None:
        pytest.skip("there is no PostgreSQL server here (Debian's package is postgresql)")
    # Not below pytest's own folder, which every start of pytest closes to other users.
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home, port = Path(folder), free_port()
        user = as_owner_of(home)
        initdb = [str(programs / "initdb"), "-A", "trust", "-U", "ada", "-D", str(home / "data"), "--no-sync"]
        subprocess.run(initdb, check=True, capture_output=True, **user)
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
    os.chown(home, other.pw_uid, other.pw_gid)
    return {"user": other.pw_uid, "group": other.pw_gid}


@pytest.mark.slow
def test_postgresql_holds_the_same_as_sqlite_and_takes_it_once(
    postgresql: str, write_sweep: WriteSweep, output_dir: Path
) -> None:
    sweep = write_sweep(TRIALS, HOW)
    database = TrackingSpec(kind="database", uri=postgresql, experiment="made-up")
    first = import_sweep(sweep, database, output_dir)
    again = import_sweep(sweep, database, output_dir)
    assert (first.created, again.created, again.unchanged) == (5, 0, 5)
    import_sweep(sweep, SQLITE, output_dir)
    assert contents_of(output_dir, database) == contents_of(output_dir)


@pytest.fixture
def signed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a person who has exported who she is."""
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", USER)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)


def on(address: str, experiment: str = "made-up") -> TrackingSpec:
    return TrackingSpec(kind="server", uri=address, experiment=experiment)


@pytest.mark.thorough  # than an interrupted import and an unreachable server in test_sweep_import; it starts one more
@pytest.mark.slow
@pytest.mark.usefixtures("signed_in")
def test_a_server_that_dies_in_the_middle_is_continued_later_without_duplicates(
    remote: Remote, write_sweep: WriteSweep, output_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, tracking = write_sweep(TRIALS, HOW), on(remote.address)
    close, closed = RunWriter._close, list[str]()

    def die_at_the_third(writer: RunWriter, run_id: str, content: Any) -> None:
        close(writer, run_id, content)
        closed.append(run_id)
        if len(closed) == 3:  # its metrics are still to come
            remote.kill()

    monkeypatch.setattr(RunWriter, "_close", die_at_the_third)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    try:
        with refused(UsageError, "tracking.kind", recorded=False):
            import_sweep(sweep, tracking, output_dir)
        monkeypatch.setattr(RunWriter, "_close", close)
    finally:
        remote.start()
    done = import_sweep(sweep, tracking, output_dir)
    assert (done.created, done.updated, done.unchanged) == (2, 1, 2)
    assert import_sweep(sweep, tracking, output_dir).unchanged == 5
    import_sweep(sweep, SQLITE, output_dir)
    assert contents_of(output_dir, tracking, remote.tables) == contents_of(output_dir)


@pytest.mark.slow
def test_the_user_and_the_password_may_stand_in_the_address_and_the_server_holds_the_same_as_sqlite(
    remote: Remote, write_sweep: WriteSweep, tmp_path: Path, output_dir: Path
) -> None:
    sweep = write_sweep(TRIALS, HOW)
    tracking = on(remote.address_of(USER, PASSWORD), "by-address")
    assert (import_sweep(sweep, tracking, tmp_path).created, import_sweep(sweep, tracking, tmp_path).unchanged) == (
        5,
        5,
    )
    base = runs_in(tmp_path, tracking)["base"]
    assert (base.info.status, base.data.metrics["meas/tok_per_s"]) == ("FINISHED", 100.0)
    names = {item.path for item in connect(tracking, tmp_path).list_artifacts(base.info.run_id)}
    assert names == {"config.json", "estimate.json", "measurement.json", "log_tail.txt"}
    assert not database_path(tmp_path).exists(), "a server needs no local store"
    import_sweep(sweep, SQLITE, output_dir)
    assert contents_of(output_dir, tracking, remote.tables) == contents_of(output_dir)
    links: list[Links] = []
    serve_ui(on(tracking.uri or "", "nobody's"), tmp_path, free_port(), links.append)
    assert links == [Links(remote.address)], "the UI is the server's own, and nobody reads the password"


@pytest.mark.slow
@pytest.mark.parametrize("password", ["", "difference-engine"])
def test_a_server_that_refuses_the_password_is_one_message_without_it(
    remote: Remote, write_sweep: WriteSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    sweep = write_sweep(TRIALS[:1], HOW)
    if password:
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", USER)
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)
    in_address = remote.address_of(USER, password) if password else remote.address
    for address in (remote.address, in_address):
        with refused(UsageError, "tracking.uri") as caught:
            import_sweep(sweep, on(address), tmp_path)
        assert "difference" not in str(caught.value)
    with refused(UsageError, "tracking.uri"):
        serve_ui(on(remote.address), tmp_path, free_port(), lambda links: None)
