"""Serve the MLflow UI of a sweep's store on the loopback interface."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import quote, urlencode

from conf.credentials import without_credentials
from conf.errors import UsageError
from conf.types.sites import TrackingSpec
from results.mlflow.reachable import pass_proxy_by, require_database, require_sqlite
from results.mlflow.run_content import ORDER, SWEEP_ID
from results.mlflow.store import QUIET_SETTINGS, artifact_dir, connect, database_path, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient

LOOPBACK = "127.0.0.1"
REPORT = "report.html"
MODELS, CHARTS = {"workflowType": "machine_learning"}, {"compareRunsMode": "CHART"}
"""Of MLflow's page: the side for trained models, and charts in the place of the table."""
START_SECONDS = 90.0
STOP_SECONDS = 10
POLL_SECONDS = 0.1

GUARD = f"""
exec 3<&0
(trap : TERM; read _ <&3; kill 0; sleep {STOP_SECONDS}; kill -KILL 0) &
"$@" </dev/null 3<&- & server=$!
trap : TERM
while kill -0 $server; do wait $server; done 2>/dev/null
kill -KILL 0
"""
"""Runs a server, and ends it with all that it has started once standard input ends: a pipe, whose other end this
process holds and never writes to. When this process ends, even by `kill -9`, the pipe does too."""


@dataclass(frozen=True)
class Links:
    """Addresses in the UI.

    Attributes:
        table: the newest sweep's trials, the fastest first.
        charts: the same trials as charts; None where there is no sweep.
        report: the report of the newest sweep; None where there is none.
    """

    table: str
    charts: str | None = None
    report: str | None = None


def serve_ui(tracking: TrackingSpec, output_dir: Path, port: int, on_ready: Callable[[Links], None]) -> None:
    """Serve until Ctrl-C; `on_ready` gets the links once the page answers. A tracking server has its own UI: return.

    Raises:
        UsageError: there is no store yet, the port is taken, or the UI does not start or ends by itself.
    """
    if tracking.kind == "server":
        on_ready(links_in(connect(tracking, output_dir), tracking_uri(tracking, output_dir), tracking.experiment))
        return
    _require_store(tracking, output_dir)
    _require_free(port)
    # The server writes into a file, because a pipe that nobody reads would stop it once it is full.
    with tempfile.TemporaryFile("w+") as log, _interrupt_on_endings():
        process = _start(tracking_uri(tracking, output_dir), output_dir, port, log)
        try:
            address = f"http://{LOOPBACK}:{port}"
            pass_proxy_by(address)
            _wait_until_it_answers(process, port, log)
            here = TrackingSpec(kind="server", uri=address, experiment=tracking.experiment)
            on_ready(links_in(connect(here, output_dir), address, tracking.experiment))
            process.wait()
            log.seek(0)
            raise UsageError(f"The MLflow UI ended by itself: {_last_error(log.read())}", "Start it again.")
        except KeyboardInterrupt:
            pass
        finally:
            _stop(process)


def links_in(client: MlflowClient, address: str, experiment: str) -> Links:
    """Return links to the newest sweep in the UI; to its front page if there is no such experiment."""
    stored, base = client.get_experiment_by_name(experiment), without_credentials(address).rstrip("/")
    if stored is None:
        return Links(base)
    runs = f"{base}/#/experiments/{stored.experiment_id}/runs"
    newest = client.search_runs(
        [stored.experiment_id], "tags.kind = 'sweep'", order_by=["attributes.start_time DESC"], max_results=1
    )
    if not newest:
        return Links(f"{runs}?{urlencode(MODELS)}")
    run_id, tags = newest[0].info.run_id, newest[0].data.tags
    trials = f"tags.kind = 'trial' AND tags.in_sweep = 'true' AND tags.`{SWEEP_ID}` = '{tags[SWEEP_ID]}'"
    column, _, direction = tags.get(ORDER, "").partition(" ")
    shown = MODELS | {"searchFilter": trials, "orderByKey": column, "orderByAsc": str(direction == "ASC").lower()}
    names = {artifact.path for artifact in client.list_artifacts(run_id)}
    return Links(
        f"{runs}?{urlencode(shown, quote_via=quote)}",
        f"{runs}?{urlencode(shown | CHARTS, quote_via=quote)}",
        f"{runs}/{run_id}/artifacts/{REPORT}?{urlencode(MODELS)}" if REPORT in names else None,
    )


@contextmanager
def _interrupt_on_endings() -> Iterator[None]:
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


def _require_store(tracking: TrackingSpec, output_dir: Path) -> None:
    path = database_path(output_dir)
    if tracking.kind == "database":
        require_database(tracking_uri(tracking, output_dir))
    elif path.is_file():
        require_sqlite(path)
    else:
        remedy = "Run a sweep or its report first, or name the folder with output_dir=PATH."
        raise UsageError(f"There is no MLflow store at {path} yet", remedy)


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        # Without it, connections of an earlier server that are still closing would make the port look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise UsageError(f"Port {port} on {LOOPBACK} is taken ({error.strerror})", "Choose another one.") from None


def _start(uri: str, output_dir: Path, port: int, log: IO[str]) -> subprocess.Popen[str]:
    """Start the server below a shell that ends it even where this process is killed."""
    server = [sys.executable, "-m", "mlflow", "server", "--host", LOOPBACK, "--port", str(port), "--workers", "1"]
    server += ["--default-artifact-root", artifact_dir(output_dir).as_uri()]
    # Here too, what the user has exported wins. The address may hold a password, which `ps` shows to everybody in a
    # command, and in a process's environment to its user alone.
    environment = QUIET_SETTINGS | dict(os.environ) | {"MLFLOW_BACKEND_STORE_URI": uri}
    # In a session of its own, so that a Ctrl-C reaches the server only through us.
    return subprocess.Popen(
        ["sh", "-c", GUARD, "mlflow", *server],
        stdout=log,
        stderr=log,
        stdin=subprocess.PIPE,
        env=environment,
        text=True,
        start_new_session=True,
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
        "If the store is damaged, move it away: `trisweep reindex` makes it anew from the sweeps' folders.",
    )


def _last_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "it said nothing")


def _stop(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait(2 * STOP_SECONDS)
