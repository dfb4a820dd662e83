"""`trisweep report` of a sweep in which nothing is new since its last report."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

import sweeps.sweep
from cli.commands.report import report
from launcher.slurm import job_records
from launcher.slurm.query import CommandAnswer
from results.mlflow import sweep_import
from sweeps.folder.submission import write_submission
from sweeps.sweep import Sweep
from tests.results.conftest import CREATED, WriteSweep, finish, in_slurm, performance, trial, write_sweep

__all__ = ["write_sweep"]

STRONG = trial("strong", world_size=2, tensor_parallel_size=2)
TRIALS = (trial("base", is_baseline=True), STRONG, trial("impossible", world_size=3, tensor_parallel_size=2))
HOW = {"base": performance(100.0), "strong": performance(160.0, 2)}


class Reports:
    """Reports on one sweep, and what each of them read and said."""

    def __init__(self, sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.num_readings, self._capsys = sweep.folder, 0, capsys

    def __call__(self, *, as_json: bool = False) -> str:
        report(str(self.folder.path), as_json=as_json)
        return self._capsys.readouterr().out


@pytest.fixture
def reports(write_sweep: WriteSweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Reports:
    """Of a sweep long after its last change; MLflow is another matter."""
    monkeypatch.setattr(sweeps.sweep, "TICK_NS", 0)
    summary = sweep_import.ImportSummary("", "", "", created=0, updated=0, unchanged=4)
    monkeypatch.setattr(sweep_import, "import_sweep", lambda *_, **__: summary)
    reports, read = Reports(Sweep(*write_sweep(TRIALS, HOW)[:2]), capsys), Sweep.read

    def counted(sweep: Sweep) -> object:
        reports.num_readings += 1
        return read(sweep)

    monkeypatch.setattr(Sweep, "read", counted)
    return reports


def test_it_says_the_same_without_reading_the_sweep_again(reports: Reports) -> None:
    first = reports()
    written = [path.stat().st_mtime_ns for path in reports.folder.path.glob("report.*")]
    assert "tp2-pp1-dp1-mb1-gb8" in first
    assert reports() == first
    assert reports.num_readings == 1
    assert [path.stat().st_mtime_ns for path in reports.folder.path.glob("report.*")] == written


def test_what_has_changed_is_read_and_said(reports: Reports) -> None:
    first = reports()
    reports.folder.trial("strong").clear_results()
    finish(reports.folder, STRONG, performance(320.0, 2))
    assert reports() != first
    (reports.folder.trial("base").path / "slurm_job.json").write_text("{}")
    reports()
    assert reports.num_readings == 3
    reports.folder.report("html").unlink()
    reports()
    assert (reports.num_readings, reports.folder.report("html").exists()) == (4, True)


@pytest.mark.parametrize("damage", ["", "{", '{"files": 1}', "[]"])
def test_a_damaged_memory_is_as_good_as_none(reports: Reports, damage: str) -> None:
    first = reports()
    reports.folder.reported.write_text(damage)
    assert (reports(), reports.num_readings) == (first, 2)


def test_a_memory_whose_words_were_changed_is_not_believed(reports: Reports) -> None:
    first = reports()
    kept = json.loads(reports.folder.reported.read_text())
    reports.folder.reported.write_text(json.dumps(kept | {"said": [1, 2]}))
    assert (reports(), reports.num_readings) == (first, 2)


def test_a_document_has_all_rows_whenever_it_is_asked_for(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = list[dict[str, Any]]()
    monkeypatch.setattr("cli.commands.report.print_json", lambda name, content: documents.append(content))
    reports()
    reports(as_json=True)
    assert [row["trial_id"] for row in documents[0]["trials"]] == ["base", "strong", "impossible"]


def test_the_memory_is_private(reports: Reports) -> None:
    reports()
    assert reports.folder.reported.stat().st_mode & 0o077 == 0


class Accounting:
    """Slurm's accounting of two jobs, which were submitted a moment ago: what it says, and of what it was asked."""

    def __init__(self, reports: Reports, ended: float) -> None:
        self.told, self.asked = "", list[Sequence[str]]()
        for number, name in enumerate(("base", "strong")):
            files = reports.folder.trial(name)
            names = {"job_id": f"12_{number}", "job_name": f"ours-{number}"}
            write_submission(files, in_slurm(files).model_copy(update=names))
            measured = files.read_measurement()
            assert measured is not None
            files.write_measurement(measured.model_copy(update={"ended": ended}))

    def __call__(self, _columns: object, job_ids: Sequence[str], *_: object, **__: object) -> CommandAnswer:
        self.asked.append(job_ids)
        return CommandAnswer(asked=0.0, took=0.0, exit_code=0, said=self.told, complained="")

    def tell_of(self, *numbers: int) -> None:
        values = {"State": "COMPLETED", "ElapsedRaw": "10", "ConsumedEnergyRaw": "4560"}
        lines = (values | {"JobID": f"12_{number}", "JobName": f"ours-{number}"} for number in numbers)
        self.told = "\n".join("|".join(line.get(name, "") for name in job_records.COLUMNS) for line in lines)


@pytest.fixture
def accounting(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> Accounting:
    accounting = Accounting(reports, time.time())
    monkeypatch.setattr(job_records, "ask_accounting", accounting)
    return accounting


def test_records_of_jobs_that_a_report_kept_itself_are_nothing_new(reports: Reports, accounting: Accounting) -> None:
    accounting.tell_of(0, 1)
    first = reports()
    assert "456" in reports.folder.report("html").read_text()
    assert (reports(), reports.num_readings, len(accounting.asked)) == (first, 1, 1)


def test_while_records_may_still_come_only_the_accounting_is_asked(reports: Reports, accounting: Accounting) -> None:
    accounting.tell_of(0)
    first = reports()
    assert (reports(), reports.num_readings) == (first, 1)
    assert accounting.asked == [["12"], ["12"]]
    accounting.tell_of(1)
    reports()
    assert reports.num_readings == 2
    reports()
    assert (reports.num_readings, len(accounting.asked)) == (2, 4)


def test_records_that_never_came_are_not_asked_for_any_longer(reports: Reports, accounting: Accounting) -> None:
    reports()
    reports()
    assert len(accounting.asked) == 2
    Accounting(reports, CREATED)
    accounting.asked.clear()
    first = reports()
    assert (reports(), reports.num_readings, len(accounting.asked)) == (first, 2, 1)
