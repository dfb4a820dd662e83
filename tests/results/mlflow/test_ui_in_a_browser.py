"""`trisweep ui` in Chromium, on a sweep as a person finds it: runs, columns, order, comparison, the report, the end."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl

import psutil
import pytest

from results.mlflow.store import database_path
from results.mlflow.sweep_import import import_sweep
from sweeps.sweep import Sweep
from tests.results.conftest import SQLITE, performance, report_of, sweep_writer, trial
from tests.results.mlflow.addresses import PATIENCE_SECONDS, free_port, read
from train_core.trial.measurement import Outcome, Performance

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),  # MLflow's own
]
PATIENCE_MS = 120_000
NO_ASSISTANT = "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')"
"""MLflow opens a panel at a person's first visit, and remembers that it has."""

TRIALS = (
    trial("base", is_baseline=True),
    trial("two", world_size=2, tensor_parallel_size=2),
    trial("four", world_size=4, tensor_parallel_size=2, pipeline_parallel_size=2, global_batch_size=32),
    trial("dead", world_size=2, pipeline_parallel_size=2),
)
HOW: dict[str, Performance | tuple[Outcome, str]] = {
    "base": performance(100.0),
    "two": performance(240.0, 2),
    "four": performance(320.0, 4),
    "dead": (Outcome.OUT_OF_MEMORY, "rank 1 ran out of memory"),
}


class Served(NamedTuple):
    """What `trisweep ui` has printed, and the command itself, which goes on."""

    process: subprocess.Popen[str]
    run_id: str
    sweep_id: str
    table: str
    charts: str
    report: str


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Served]:
    """The UI of an imported sweep, as a person opens it."""
    sweep = made_up_sweep(tmp_path_factory.mktemp("ui"))
    output_dir = sweep.folder.path.parent
    shutil.copy(empty_store, database_path(output_dir))
    report_of(sweep)
    run_id = import_sweep(sweep, SQLITE, output_dir).run_id
    trisweep = str(Path(sys.executable).with_name("trisweep"))
    command = [trisweep, "ui", f"output_dir={output_dir}", "tracking.experiment=made-up", "--port", str(free_port())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        links: list[str] = []
        for line in process.stdout:
            links += [word for word in line.split() if word.startswith("http")]
            if len(links) == 3:
                break
        assert len(links) == 3, f"The UI ended with {process.wait()} after {links}; its message is on stderr."
        yield Served(process, run_id, sweep.folder.tracking_id.read_text().split()[0], *links)
        process.terminate()
        process.stdout.read()


def made_up_sweep(folder: Path) -> Sweep:
    return sweep_writer(folder)(TRIALS, HOW)


@pytest.fixture(scope="module")
def page(browser: Browser) -> Page:
    context = browser.new_context(viewport={"width": 1600, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(NO_ASSISTANT)
    return context.new_page()


@pytest.mark.slow
def test_it_prints_links_to_the_trials_and_the_report_and_answers_on_loopback_alone(ui: Served) -> None:
    address, _, shown = ui.table.partition("/#/")
    page, _, query = shown.partition("?")
    trials = f"tags.kind = 'trial' AND tags.in_sweep = 'true' AND tags.`trisweep.sweep_id` = '{ui.sweep_id}'"
    told = {"workflowType": "machine_learning", "searchFilter": trials, "orderByAsc": "false"}
    assert (page, dict(parse_qsl(query))) == ("experiments/1/runs", told | {"orderByKey": "metrics.`meas/TFLOPS`"})
    assert ui.charts == f"{ui.table}&compareRunsMode=CHART"
    report = f"{address}/#/experiments/1/runs/{ui.run_id}/artifacts/report.html?workflowType=machine_learning"
    assert ui.report == report
    assert "<title>MLflow</title>" in read(address)
    assert '"name": "made-up"' in read(f"{address}/get-artifact?path=sweep.json&run_uuid={ui.run_id}")
    host, _, port = address.removeprefix("http://").partition(":")
    listening = [c.laddr for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.laddr]
    assert {place.ip for place in listening if place.port == int(port)} == {"127.0.0.1"} == {host}


@pytest.mark.slow
def test_it_opens_on_a_flat_table_of_trials_ranked_by_what_was_measured(ui: Served, page: Page) -> None:
    page.goto(ui.table)
    page.get_by_role("link", name="tp2-pp1-dp1-mb1-gb8").wait_for()
    names = page.locator("[col-id='attributes.`Run Name`'] a").all_inner_texts()
    assert [name.strip() for name in names] == [
        "tp2-pp1-dp1-mb1-gb8",
        "tp1-pp1-dp1-mb1-gb8",
        "tp2-pp2-dp1-mb1-gb32",
        "tp1-pp2-dp1-mb1-gb8",
    ]


@pytest.mark.slow
def test_trials_are_compared_in_charts(ui: Served, page: Page) -> None:
    page.goto(ui.charts)
    page.get_by_text("meas/TFLOPS").first.wait_for()


@pytest.mark.slow
def test_the_report_opens_from_the_run_of_the_sweep(ui: Served, page: Page) -> None:
    page.goto(ui.report)
    report = page.frame_locator("iframe").first
    report.get_by_text("Which layout of a made-up model is fastest?").first.wait_for()


@pytest.mark.slow
def test_the_note_of_the_sweep_explains_names_of_layouts(ui: Served, page: Page) -> None:
    page.goto(ui.report.partition("/artifacts")[0] + "?workflowType=machine_learning")
    page.get_by_text("tensor-parallel size 2").first.wait_for()
    assert page.get_by_text("baseline_outcome").first.is_visible()


@pytest.mark.slow
def test_ended_at_last_it_leaves_nothing_behind(ui: Served) -> None:
    children = psutil.Process(ui.process.pid).children(recursive=True)
    assert len(children) >= 2, "the guard, the server and its workers"
    ui.process.terminate()
    assert ui.process.wait(PATIENCE_SECONDS) == 0
    gone, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
    assert not alive, gone
