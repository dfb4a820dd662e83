"""Serve the MLflow UI of a sweep's store on the loopback interface."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from conf.errors import UsageError
from conf.sites import TrackingSpec
from results.mlflow.store import QUIET_SETTINGS, artifact_dir, database_path, require_server, tracking_uri

LOOPBACK = "127.0.0.1"
START_SECONDS = 90.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.1


def serve_ui(tracking: TrackingSpec, output_dir: Path, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve until Ctrl-C; `on_ready` gets the link once the page answers. A tracking server has its own UI: return.

    Raises:
        UsageError: there is no store yet, the port is taken, or the UI does not start.
    """
    if tracking.kind == "server":
        uri = tracking_uri(tracking, output_dir)
        require_server(uri)
        on_ready(uri)
        return
    _require_store(output_dir)
    _require_free(port)
    # The server writes into a file, because a pipe that nobody reads would stop it once it is full.
    with tempfile.TemporaryFile("w+") as log, _endings_as_interrupts():
        process = _start(tracking_uri(tracking, output_dir), output_dir, port, log)
        try:
            _wait_until_it_answers(process, port, log)
            on_ready(f"http://{LOOPBACK}:{port}{_page_of_runs(tracking, output_dir)}")
            process.wait()
        except KeyboardInterrupt:
            pass
        finally:
            _stop(process)


@contextmanager
def _endings_as_interrupts() -> Iterator[None]:
    """A closed terminal or a plain `kill` must stop the server too, which lives in a session of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # a background job starts with SIGINT ignored
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _require_store(output_dir: Path) -> None:
    if not database_path(output_dir).is_file():
        raise UsageError(
            f"There is no MLflow store at {database_path(output_dir)} yet",
            "Run a sweep or its report first, or name the folder with output_dir=PATH.",
        )


def _page_of_runs(tracking: TrackingSpec, output_dir: Path) -> str:
    """Where the UI shows the experiment's runs; its front page where there is no such experiment."""
    with contextlib.closing(sqlite3.connect(database_path(output_dir))) as store:
        query = "SELECT experiment_id FROM experiments WHERE name = ?"
        found = store.execute(query, (tracking.experiment,)).fetchone()
    return f"/#/experiments/{found[0]}/runs" if found else ""


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        # Without it, connections of an earlier server that are still closing would make the port look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise UsageError(f"Port {port} on {LOOPBACK} is taken ({error.strerror})", "Choose another one.") from None


def _start(uri: str, output_dir: Path, port: int, log: IO[str]) -> subprocess.Popen[str]:
    """Start the server in a session of its own, because it starts workers, which all must end with it."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", LOOPBACK, "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", uri, "--default-artifact-root", artifact_dir(output_dir).as_uri()]
    # Here too, what the user has exported wins.
    environment = QUIET_SETTINGS | dict(os.environ)
    return subprocess.Popen(
        command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, text=True, start_new_session=True
    )


def _wait_until_it_answers(process: subprocess.Popen[str], port: int, log: IO[str]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/health", timeout=1):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(POLL_SECONDS)
    log.seek(0)
    raise UsageError(
        f"The MLflow UI did not start: {_last_error(log.read())}",
        "If the store is damaged, move it aside: the next import rebuilds it from the sweeps' folders.",
    )


def _last_error(log: str) -> str:
    """The last line that names an error, else the last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "it said nothing")


def _stop(process: subprocess.Popen[str]) -> None:
    """End the whole session: ask first, and then kill."""
    for number, patience in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        try:
            os.killpg(process.pid, number)
            process.wait(patience)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()
