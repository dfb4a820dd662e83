"""The MLflow UI and a real MLflow server, on the loopback interface."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from conf.errors import UsageError
from conf.sites import TrackingSpec
from results.mlflow import server_guard
from results.mlflow.store import QUIET_SETTINGS, connect, database_path
from results.mlflow.sweep_import import import_sweep
from results.mlflow.ui import Links, serve_ui
from sweeps.sweep import Sweep
from tests.results.conftest import SQLITE, WriteSweep, performance, trial

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # MLflow's own

PATIENCE_SECONDS = 90.0
TRIALS = (trial("base", is_baseline=True), trial("two", world_size=2, tensor_parallel_size=2))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


@pytest.fixture
def ui_process(write_sweep: WriteSweep, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """The UI of an imported sweep in a process that can be interrupted; it writes the link when it is ready."""
    folder, record = write_sweep(TRIALS, {"base": performance(100.0)})
    folder.report("html").write_text("<h1>A made-up report</h1>")
    output_dir, port = tmp_path / "runs", free_port()
    run_id = import_sweep(Sweep(folder, record), SQLITE, output_dir).run_id
    program = (
        "import sys; from pathlib import Path\n"
        "from results.mlflow.ui import Links, serve_ui; from conf.sites import TrackingSpec\n"
        "tracking = TrackingSpec(kind='sqlite', uri=None, experiment='made-up')\n"
        "def tell(links): print(links.table, links.charts, links.report, flush=True)\n"
        f"serve_ui(tracking, Path({str(output_dir)!r}), {port}, tell)\n"
        "print('ended', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    yield process, port, run_id
    process.kill()
    process.wait()
    if process.stdout:
        process.stdout.close()


def children_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The guard, the server and its workers."""
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    return children


@pytest.mark.slow
def test_the_ui_answers_on_loopback_shows_the_runs_and_leaves_nothing_behind(
    ui_process: tuple[subprocess.Popen[str], int, str],
) -> None:
    process, port, run_id = ui_process
    assert process.stdout is not None
    table, charts, report = process.stdout.readline().split()
    address, _, page = table.partition("/#/")
    assert address == f"http://127.0.0.1:{port}"
    view = re.fullmatch(r"experiments/1/runs\?workflowType=machine_learning&viewStateShareKey=(trisweep-\w+)", page)
    assert view, page
    assert charts == f"{address}/#/experiments/1/runs?workflowType=machine_learning&compareRunsMode=CHART" + (
        f"&viewStateShareKey={view[1]}"
    )
    assert report == f"{address}/#/experiments/1/runs/{run_id}/artifacts/report.html?workflowType=machine_learning"
    assert "<title>MLflow</title>" in read(address)
    assert '"name": "made-up"' in read(f"{address}/get-artifact?path=sweep.json&run_uuid={run_id}")
    listening = [c.laddr for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.laddr]
    assert {address.ip for address in listening if address.port == port} == {"127.0.0.1"}
    children = children_of(process)
    os.kill(process.pid, signal.SIGTERM)
    assert process.stdout.readline().strip() == "ended"
    assert process.wait(PATIENCE_SECONDS) == 0
    gone, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
    assert not alive, gone


def test_the_guard_ends_a_server_and_its_workers_when_whoever_asked_is_killed(tmp_path: Path) -> None:
    """The server is a shell that starts a worker and would go on for an hour."""
    server = "sleep 3600 & sleep 3600"
    program = (
        "import subprocess, sys, time\n"
        f"command = [sys.executable, '-P', {server_guard.__file__!r}, 'sh', '-c', {server!r}]\n"
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
    with pytest.raises(UsageError, match=r"no MLflow store at .*mlflow\.db yet.*Run a sweep"):
        serve_ui(SQLITE, tmp_path, free_port(), lambda link: None)


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    database_path(tmp_path).touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"Port {port} on 127.0.0.1 is taken"):
            serve_ui(SQLITE, tmp_path, port, lambda link: None)


def test_a_store_that_cannot_be_opened_is_said_at_once(tmp_path: Path) -> None:
    database_path(tmp_path).write_text("this is no database")
    with pytest.raises(UsageError, match=r"mlflow\.db cannot be opened \(file is not a database\).*trisweep reindex"):
        serve_ui(SQLITE, tmp_path, free_port(), lambda link: None)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real tracking server with its own store."""
    home, port = tmp_path_factory.mktemp("server"), free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{home}/server.db", "--artifacts-destination", str(home / "files")]
    environment = QUIET_SETTINGS | dict(os.environ)
    with (home / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            yield wait_for(f"http://127.0.0.1:{port}", process)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(PATIENCE_SECONDS)


def wait_for(uri: str, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            read(f"{uri}/health")
        except OSError:
            time.sleep(0.1)
        else:
            return uri
    pytest.fail("the MLflow server did not start")


@pytest.mark.slow
def test_a_tracking_server_gets_the_same_runs_once(server: str, write_sweep: WriteSweep, tmp_path: Path) -> None:
    folder, record = write_sweep(TRIALS, {"base": performance(100.0)})
    tracking = TrackingSpec(kind="server", uri=server, experiment="made-up")
    first = import_sweep(Sweep(folder, record), tracking, tmp_path)
    second = import_sweep(Sweep(folder, record), tracking, tmp_path)
    assert (first.created, second.created, second.unchanged) == (3, 0, 3)
    client = connect(tracking, tmp_path)
    runs = {run.data.tags.get("trial_id"): run for run in client.search_runs([first.experiment_id])}
    assert runs["base"].info.status == "FINISHED"
    assert runs["base"].data.metrics["meas/tok_per_s"] == 100.0
    names = {item.path for item in client.list_artifacts(runs["base"].info.run_id)}
    assert names == {"config.json", "estimate.json", "measurement.json", "log_tail.txt"}
    assert not database_path(tmp_path).exists(), "a server needs no local store"


@pytest.mark.slow
def test_the_ui_of_a_tracking_server_is_the_server(server: str, tmp_path: Path) -> None:
    links: list[Links] = []
    serve_ui(TrackingSpec(kind="server", uri=server, experiment="nobody's"), tmp_path, free_port(), links.append)
    assert links == [Links(server)]
