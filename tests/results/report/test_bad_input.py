"""Reports of sweeps that went wrong, or hold what nobody expects: the page still opens, is whole, and says so."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.text import Text

from cli.output.console import SafeConsole
from conf.errors import UsageError
from conf.visible import visible
from results.render.page import plot_library
from results.render.table import Cell, Table
from results.report.report import ReportPaths, write_report
from sweeps.sweep import Sweep
from tests.messages import refused
from tests.results.conftest import FULL, WriteSweep, cluster, performance, report_of, trial
from tests.results.report.conftest import Open
from tests.results.report.test_report import HOW, PLAN, PROXY_TRIALS
from train_core.trial.measurement import Outcome

PHONE = 390
NASTY = """<script>document.title = "injected"</script> "'`|\\ & </td></table> {{ 7 * 7 }} """
LONG = NASTY + "long " * 2000
NO_NUMBER = float("nan")
BASE, TWO = PROXY_TRIALS[0], PROXY_TRIALS[1]
FAILED = (Outcome.FAILED, "rank 1: no space left")
DIVERGED = performance(100.0, losses=(5.0, NO_NUMBER, float("inf")), final_loss=NO_NUMBER)
ELSEWHERE = BASE.model_copy(update={"trial_id": "elsewhere", "is_baseline": False}).model_copy(
    update={"experiment": BASE.experiment and BASE.experiment.model_copy(update={"cluster": cluster("other-cluster")})}
)
CASES = {
    "an empty sweep": ([], {}, (), "Nothing was measured: this sweep has no trials."),
    "one trial": ([BASE], {"base": performance(100.0)}, (), "tp1-pp1-dp1-mb1-gb8"),
    "all failed": ([BASE, TWO], {"base": FAILED, "two": FAILED}, PLAN, "every trial failed or cannot run"),
    "no number as a loss": ([BASE, TWO], {"base": DIVERGED, "two": DIVERGED}, (), "A loss that is not a finite number"),
    "a failed baseline": ([BASE, TWO], {"base": FAILED, "two": HOW["two"]}, (), "the baseline has not been measured"),
    "two clusters": (
        [BASE, ELSEWHERE],
        {"base": performance(100.0), "elsewhere": performance(90.0)},
        (),
        "cluster not as in the baseline",
    ),
    "nasty text": ([BASE, TWO], {"base": HOW["base"], "two": (Outcome.FAILED, LONG)}, (), "7 * 7"),
    "nothing that fits": ([BASE], {}, (PLAN[2], PLAN[3]), "No full-size point fits"),
}


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_page_opens_and_says_what_is_wrong(write_sweep: WriteSweep, visit: Open, name: str) -> None:
    trials, how, plan, expected = CASES[name]
    paths = report_of(write_sweep(trials, how, plan=plan))
    seen = visit(paths.html, PHONE)
    assert seen.troubles == []
    assert seen.page.title() == "Sweep made-up"
    assert expected in paths.markdown.read_text()
    assert expected in seen.page.content()
    assert seen.page.evaluate("document.documentElement.scrollWidth") == PHONE
    assert not re.search(r"\bnan\b|\binf\b|None", seen.page.locator("#answer").inner_text())


@pytest.mark.slow
def test_a_long_text_is_cut_and_the_whole_can_be_reached(write_sweep: WriteSweep, visit: Open) -> None:
    how = {"base": HOW["base"], "two": (Outcome.FAILED, LONG)}
    paths = report_of(write_sweep([BASE, TWO], how))
    page = visit(paths.html).page
    cell = page.locator("#table-trials tbody tr").nth(1).locator("td.key")
    assert len(cell.inner_text()) < 300
    cell.locator("summary").click()
    assert len(cell.inner_text()) > 10_000
    assert max(map(len, paths.markdown.read_text().splitlines())) < 2_000
    assert LONG.strip() in paths.csv.read_text().replace('""', '"')


@pytest.mark.slow
def test_a_page_of_many_trials_stays_small(write_sweep: WriteSweep) -> None:
    """100 trials below 3 MB, and 1,000 of them below 8 MB, because all but the library grows with the trials."""
    trials = [trial(f"t{number}", number == 0, global_batch_size=8 * (1 + number)) for number in range(100)]
    plan = [
        trial(f"p{number}", number == 0, model=FULL, world_size=64, global_batch_size=64 * (1 + number))
        for number in range(100)
    ]
    how = {each.trial_id: performance(100.0 + number) for number, each in enumerate(trials)}
    page = report_of(write_sweep(trials, how, plan=plan)).html.read_text()
    assert len(page) < 3_000_000
    library = len(plot_library())
    assert library + 10 * (len(page) - library) < 8_000_000


def test_a_report_goes_where_it_is_asked_to(write_sweep: WriteSweep, tmp_path: Path) -> None:
    sweep = write_sweep([BASE], {"base": performance(100.0)})
    paths = write_report(sweep, sweep.read(), tmp_path / "mine")
    assert paths == ReportPaths(*(tmp_path / "mine" / f"report.{suffix}" for suffix in ("md", "csv", "html")))
    assert all(path.stat().st_size for path in (paths.markdown, paths.csv, paths.html))
    assert not sweep.folder.report("html").exists()


def test_a_file_that_cannot_be_written_is_named_with_what_helps(write_sweep: WriteSweep) -> None:
    folder, record, _ = write_sweep([BASE], {"base": performance(100.0)})
    folder.report("md").mkdir()
    with refused(UsageError, "report.md"):
        report_of(Sweep(folder, record))


HOSTILE = "\x1b[2J\x07\r\u202e <script>x</script> [y](javascript:z) | \x00"


def hostile_sweep(write_sweep: WriteSweep) -> Sweep:
    """Its question, a value, a name and the end of a trial hold what acts elsewhere."""
    how = {"base": HOW["base"], "two": (Outcome.FAILED, HOSTILE)}
    sweep = write_sweep([BASE, TWO], how)
    named = [each.model_copy(update={"point": {"model.name": HOSTILE}}) for each in sweep.record.trials]
    spec = sweep.record.spec.model_copy(update={"question": HOSTILE})
    return sweep._replace(record=sweep.record.model_copy(update={"spec": spec, "trials": tuple(named)}))


def test_nothing_in_the_files_of_a_report_acts(write_sweep: WriteSweep) -> None:
    paths = report_of(hostile_sweep(write_sweep))
    for path in (paths.markdown, paths.csv):
        assert visible(path.read_text()) == path.read_text()
    assert "<script" not in paths.markdown.read_text()
    assert "](" not in paths.markdown.read_text()
    page = paths.html.read_text().replace(plot_library(), "")
    assert visible(page) == page
    assert "\\u202e" in page
    assert not re.search(r"\bhref=(?![\"']#|[\"']data:,)", page), "no text becomes a link"


@pytest.mark.slow
def test_a_page_with_texts_that_act_elsewhere_opens_and_shows_them(write_sweep: WriteSweep, visit: Open) -> None:
    seen = visit(report_of(hostile_sweep(write_sweep)).html, PHONE)
    assert seen.troubles == []
    assert visible(seen.page.locator("body").inner_text()) == seen.page.locator("body").inner_text()
    assert set(seen.page.locator("a").evaluate_all("all => all.map(a => a.protocol)")) == {"file:"}


@pytest.mark.parametrize("shown", ["text", "table", "rich text"])
def test_nothing_that_is_printed_acts_in_a_terminal(shown: str) -> None:
    printed = io.StringIO()
    what = {"text": HOSTILE, "table": Table.of([{HOSTILE: Cell(HOSTILE)}]), "rich text": Text(HOSTILE, style="bold")}
    SafeConsole(file=printed, width=300, markup=False, emoji=False, highlight=False).print(what[shown])
    assert visible(printed.getvalue()) == printed.getvalue()
    assert r"\x1b[2J" in printed.getvalue()
