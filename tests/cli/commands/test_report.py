"""`trisweep report` of a sweep that has been measured."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cli.commands.report import report
from cli.started_sweep import started_sweep
from conf.errors import UsageError
from conf.types.sites import TrackingSpec
from results.mlflow import sweep_import
from sweeps.sweep import Sweep
from tests.cli.conftest import Command
from tests.messages import refused, said
from tests.results.conftest import SQLITE, WriteSweep, write_sweep
from tests.results.report.test_report import HOW, PROXY_TRIALS

__all__ = ["write_sweep"]

COMMAND = "from cli.main import main; main()"


@pytest.mark.slow
def test_a_corrupt_measurement_is_put_aside_and_the_rest_is_reported(
    finished: Path, tmp_path: Path, trisweep: Command
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    victim = next((copy / "runs" / "smoke-local" / "trials").glob("tp1-pp1-dp1*")) / "measurement.json"
    victim.write_text('{"outcome": "COMPL')
    done = trisweep("report", "smoke", cwd=copy)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert len(list(victim.parent.glob("measurement.corrupt-*.json"))) == 1
    assert done.stdout.count("COMPLETED") == 2
    text = (copy / "runs" / "smoke-local" / "report.md").read_text()
    assert "corrupt" in text


@pytest.mark.slow
def test_two_sweeps_are_compared_by_their_folders(finished: Path, tmp_path: Path, trisweep: Command) -> None:
    before = tmp_path / "before"
    shutil.copytree(finished / "runs" / "smoke-local", before)
    part = "parallel.tensor_parallel_size=1"
    done = trisweep("report", str(before), "smoke-local", part, "--out", str(tmp_path / "out"), cwd=finished)
    assert done.returncode == 0
    assert done.stderr == f"{part}: changes nothing, as a report is of what was measured.\n"
    assert "B trains 1.00 times as many tokens a second as A" in " ".join(done.stdout.split())
    assert (tmp_path / "out" / "compared-with-before.html").exists()


@pytest.mark.slow
def test_one_sweep_is_reported_by_its_folder_too(finished: Path, tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("report", "runs/smoke-local", "--out", str(tmp_path), cwd=finished)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_an_override_that_a_report_cannot_follow_is_named(finished: Path, tmp_path: Path, trisweep: Command) -> None:
    options = ("--out", str(tmp_path))
    done = trisweep("report", "smoke", "training.dropout=0.1", *options, cwd=finished)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "training.dropout=0.1: changes nothing, as a report is of what was measured.\n"
    part = trisweep("report", "smoke", "parallel.tensor_parallel_size=1", *options, cwd=finished)
    assert (part.returncode, part.stderr) == (0, "")


@pytest.mark.thorough  # than sweeps/test_reading
@pytest.mark.slow
def test_a_sweep_whose_file_has_gone_is_read_from_its_record(tmp_path: Path, trisweep: Command) -> None:
    """Everything that only reads needs the record alone."""
    own = tmp_path / "own"
    (own / "sweep").mkdir(parents=True)
    file = own / "sweep" / "mine.yaml"
    text = (Path(__file__).parents[3] / "conf" / "sweep" / "smoke.yaml").read_text()
    file.write_text(text.replace("name: smoke", "name: mine"))
    words = ("--config-dir", str(own))
    assert trisweep("sweep", "mine", "--here", "sweep.max_trials=1", *words, cwd=tmp_path).returncode == 0
    file.rename(own / "sweep" / "yours.yaml")
    for command in (("status", "mine"), ("report", "mine"), ("report", "runs/mine-local"), ("logs", "mine")):
        done = trisweep(*command, *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert trisweep("status", "nobodys", *words, cwd=tmp_path).returncode == 2


@pytest.mark.slow
def test_a_folder_of_several_sweeps_is_refused_with_their_names(finished: Path) -> None:
    with refused(UsageError):
        started_sweep(str(finished / "runs"), [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("smoke-local", "smoke-local"), ""),
        (("smoke-local", "nowhere/at-all"), ""),
        (("a", "b", "c"), ""),
    ],
)
def test_what_cannot_be_compared_is_one_message(
    finished: Path, trisweep: Command, words: tuple[str, ...], key: str
) -> None:
    done = trisweep("report", *words, cwd=finished)
    said(done, key)


@pytest.mark.parametrize(
    ("stated", "uri"),
    [
        (["tracking=server", "tracking.uri=https://me:pw@other.example"], "https://me:pw@other.example"),
        (["tracking.also=[tensorboard]"], "https://runs.example"),
        ([], "https://runs.example"),
    ],
)
def test_a_report_goes_into_the_store_that_its_command_names_else_into_the_record_s(
    write_sweep: WriteSweep, monkeypatch: pytest.MonkeyPatch, stated: list[str], uri: str
) -> None:
    sweep, taken = write_sweep(PROXY_TRIALS, HOW), list[TrackingSpec]()
    own = SQLITE.model_copy(update={"kind": "server", "uri": "https://runs.example"})
    sweep.folder.write_record(sweep.record.model_copy(update={"tracking": own}))

    def import_into(_: Sweep, tracking: TrackingSpec, *__: object, **___: object) -> sweep_import.ImportSummary:
        taken.append(tracking)
        return sweep_import.ImportSummary("", "", "", created=1, updated=0, unchanged=0)

    monkeypatch.setattr(sweep_import, "import_sweep", import_into)
    report(str(sweep.folder.path), stated)
    (tracking,) = taken
    assert (tracking.kind, tracking.uri) == ("server", uri)


def test_a_command_that_a_report_suggests_is_not_broken_in_its_middle(
    write_sweep: WriteSweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = write_sweep(PROXY_TRIALS, HOW)
    report(str(sweep.folder.path), out=tmp_path / "out")
    lines = capsys.readouterr().out.splitlines()
    assert any("trisweep " in line and len(line) > 80 for line in lines), lines
