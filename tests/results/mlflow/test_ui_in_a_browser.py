"""The MLflow UI in Chromium, on a sweep as a person finds it: runs, columns, order, comparison, the report."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Page, sync_playwright

from conf.sweep_spec import SweepSpec
from results.mlflow.sweep_import import import_sweep
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, SweepRecord
from tests.results.conftest import CREATED, SQLITE, finish, performance, report_of, trial
from tests.results.mlflow.test_ui import free_port
from train_core.measurement import Outcome

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),  # MLflow's own
]
PATIENCE_MS = 60_000
NO_ASSISTANT = "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')"
"""MLflow opens a panel at a person's first visit, and remembers that it has."""

TRIALS = (
    trial("base", is_baseline=True),
    trial("two", world_size=2, tensor_parallel_size=2),
    trial("four", world_size=4, tensor_parallel_size=2, pipeline_parallel_size=2, global_batch_size=32),
    trial("dead", world_size=2, pipeline_parallel_size=2),
)
HOW = {"base": performance(100.0), "two": performance(240.0, 2), "four": performance(320.0, 4)}


class Addresses(NamedTuple):
    table: str
    charts: str
    report: str


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """The links that `trisweep ui` prints, with its server behind them."""
    output_dir, port = tmp_path_factory.mktemp("runs"), free_port()
    sweep = made_up_sweep(SweepFolder(output_dir / "made-up"))
    report_of(sweep)
    import_sweep(sweep, SQLITE, output_dir)
    trisweep = str(Path(sys.executable).with_name("trisweep"))
    command = [trisweep, "ui", f"output_dir={output_dir}", "tracking.experiment=made-up", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        links: list[str] = []
        for line in process.stdout:
            links += [word for word in line.split() if word.startswith("http")]
            if len(links) == 3:
                break
        yield Addresses(*links)
        process.terminate()
        process.stdout.read()


def made_up_sweep(folder: SweepFolder) -> Sweep:
    spec = SweepSpec(
        name="made-up",
        question="Which layout of a made-up model is fastest?",
        axes={},
        points=(),
        baseline={},
        max_trials=20,
        published=(),
        proxy=None,
    )
    record = SweepRecord(
        name="made-up",
        mode="proxy",
        spec=spec,
        tracking=SQLITE,
        git_sha="0123abc",
        created=CREATED,
        plan=(),
        trials=TRIALS,
    )
    folder.write_record(record)
    for member in TRIALS:
        finish(folder, member, HOW.get(member.trial_id, (Outcome.OUT_OF_MEMORY, "rank 1 ran out of memory")))
    return Sweep(folder, record)


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("there is no Chromium here")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1600, "height": 900})
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(NO_ASSISTANT)
        yield context.new_page()
        browser.close()


def test_it_opens_on_a_flat_table_of_trials_ranked_by_what_was_measured(addresses: Addresses, page: Page) -> None:
    page.goto(addresses.table)
    page.get_by_role("link", name="tp2-pp1-dp1-mb1-gb8").wait_for()
    names = page.locator("[col-id='attributes.`Run Name`'] a").all_inner_texts()
    assert [name.strip() for name in names] == [
        "tp2-pp1-dp1-mb1-gb8",
        "tp1-pp1-dp1-mb1-gb8",
        "tp2-pp2-dp1-mb1-gb32",
        "tp1-pp2-dp1-mb1-gb8",
    ]
    rates = page.locator(".ag-center-cols-container [col-id='metrics.`meas/TFLOPS`']").all_inner_texts()
    assert [float(rate) for rate in rates if rate.strip("- ")] == [0.12, 0.1, 0.08]
    titles = page.locator(".ag-header-cell").evaluate_all(
        "cells => cells.sort((a, b) => a.getBoundingClientRect().x - b.getBoundingClientRect().x).map(c => c.innerText)"
    )
    assert [title.strip() for title in titles if "/" in title][:4] == [
        "meas/TFLOPS",
        "pred/TFLOPS",
        "meas/MFU_pct",
        "meas/step_s",
    ]
    assert page.get_by_text("made-up proxy: trials").is_visible(), "the view has the sweep's name"


def test_trials_are_compared_by_parallel_coordinates(addresses: Addresses, page: Page) -> None:
    page.goto(addresses.charts)
    page.get_by_text("Parallel Coordinates").first.wait_for()
    page.locator(".dimension text.label").first.wait_for()
    axes = page.locator(".dimension text.label").all_text_contents()
    assert axes == ["tp", "pp", "gb", "devices", "meas/TFLOPS"]


def test_the_report_opens_from_the_run_of_the_sweep(addresses: Addresses, page: Page) -> None:
    page.goto(addresses.report)
    report = page.frame_locator("iframe").first
    report.get_by_text("Which layout of a made-up model is fastest?").first.wait_for()


def test_the_note_of_the_sweep_explains_names_of_layouts(addresses: Addresses, page: Page) -> None:
    page.goto(addresses.report.partition("/artifacts")[0] + "?workflowType=machine_learning")
    page.get_by_text("tensor-parallel size 2").first.wait_for()
    assert page.get_by_text("baseline_outcome").first.is_visible()
