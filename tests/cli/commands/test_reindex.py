"""`trisweep reindex` on the smoke sweep."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import typer

from cli.commands.reindex import reindex
from conf.compose.load import compose
from conf.errors import UsageError
from conf.overrides import Overrides
from results.mlflow import sweep_import
from sweeps.points.plan import plan_sweep
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.cli.conftest import Command
from tests.messages import said

WHAT_STORES_SHARE = (
    "SELECT name, status, start_time, end_time FROM runs WHERE lifecycle_stage = 'active' ORDER BY name, start_time",
    "SELECT name, key, value, timestamp, step FROM latest_metrics JOIN runs USING (run_uuid) "
    "WHERE lifecycle_stage = 'active' ORDER BY 1, 2, 4, 5, 3",
    # How many trials had ended when, which the sweep's own run holds, is what only a sweep under way can tell.
    "SELECT name, key, value, timestamp, step FROM metrics JOIN runs USING (run_uuid) "
    "WHERE lifecycle_stage = 'active' AND name != 'smoke' ORDER BY 1, 2, 4, 5, 3",
    "SELECT name, key, params.value FROM params JOIN runs USING (run_uuid) "
    "WHERE lifecycle_stage = 'active' ORDER BY 1, 2, 3",
)


def rows(database: Path) -> list[list[object]]:
    with closing(sqlite3.connect(database)) as store:
        return [store.execute(query).fetchall() for query in WHAT_STORES_SHARE]


def tear_a_sweep(output_dir: Path) -> None:
    torn = output_dir / "torn-local" / "sweep.json"
    torn.parent.mkdir(parents=True)
    torn.write_text('{"name": "to')


@pytest.mark.slow
def test_a_lost_store_is_made_anew_from_the_folders(finished: Path, trisweep: Command, tmp_path: Path) -> None:
    shutil.copytree(finished / "runs", tmp_path / "runs")
    assert trisweep("report", "smoke", cwd=tmp_path).returncode == 0  # others may have changed the folders since
    before = rows(tmp_path / "runs" / "mlflow.db")
    (tmp_path / "runs" / "mlflow.db").unlink()
    tear_a_sweep(tmp_path / "runs")
    done = trisweep("reindex", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "torn-local is left out" in done.stderr
    assert "kept as runs/mlartifacts.old-" in done.stdout
    assert "runs written" in done.stdout
    assert rows(tmp_path / "runs" / "mlflow.db") == before


@pytest.mark.thorough  # than a store that is made anew
@pytest.mark.slow
def test_a_copied_sweep_has_runs_of_its_own(finished: Path, trisweep: Command, tmp_path: Path) -> None:
    shutil.copytree(finished / "runs", tmp_path / "runs")
    folder = tmp_path / "runs" / "smoke-local"
    assert trisweep("report", "smoke", cwd=tmp_path).returncode == 0
    shutil.copytree(folder, folder.with_name("smoke-before"))
    done = trisweep("reindex", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(tmp_path / "runs" / "mlflow.db")) as store:
        (number,) = store.execute("SELECT count(*) FROM runs WHERE lifecycle_stage = 'active'").fetchone()
    assert number == 2 * 5
    before = (folder / "tracking_id").read_text().split()[0]
    folder.with_name("smoke-before").rename(tmp_path / "runs" / "smoke-moved")
    assert trisweep("reindex", cwd=tmp_path).returncode == 0
    assert (folder / "tracking_id").read_text().split()[0] == before


def test_a_folder_without_sweeps_is_named(trisweep: Command, tmp_path: Path) -> None:
    done = trisweep("reindex", cwd=tmp_path)
    said(done, tmp_path / "runs")


def test_a_store_stays_where_no_sweep_can_be_read(trisweep: Command, tmp_path: Path) -> None:
    tear_a_sweep(tmp_path / "runs")
    store = tmp_path / "runs" / "mlflow.db"
    store.write_bytes(b"what is there")
    done = trisweep("reindex", cwd=tmp_path)
    said(done, tmp_path / "runs")
    assert store.read_bytes() == b"what is there"


def test_a_sweep_whose_store_does_not_answer_costs_no_other_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = plan_sweep(compose(Overrides.parse(["sweep=smoke"])), proxy=False, git_sha="")
    for name in ("a-local", "b-local"):
        SweepFolder(tmp_path / name).write_record(record)
    (tmp_path / "train" / "long").mkdir(parents=True)
    (tmp_path / "train" / "long" / "trial.json").write_text('{"experiment": {"mod')

    def import_into(sweep: Sweep, *_: object, **__: object) -> sweep_import.ImportSummary:
        if sweep.folder.path.name == "a-local":
            raise UsageError("no MLflow server answers", "Start it.")
        return sweep_import.ImportSummary("", "", "", created=6, updated=0, unchanged=0)

    monkeypatch.setattr(sweep_import, "import_sweep", import_into)
    with pytest.raises(typer.Exit) as ended:
        reindex(None, [f"output_dir={tmp_path}"])
    assert ended.value.exit_code == 1
    said = capsys.readouterr()
    assert "a-local is left out: no MLflow server answers" in said.err
    assert "b-local: 6 runs written" in said.out
    assert "long is left out: " in said.err
    assert "train/long/trial.json is damaged" in "".join(said.err.splitlines())


@pytest.mark.thorough  # than mlflow/test_sweep_import, where a damaged store is rebuilt
@pytest.mark.slow
def test_a_report_mends_a_store_that_a_full_disk_has_torn(finished: Path, trisweep: Command, tmp_path: Path) -> None:
    shutil.copytree(finished / "runs", tmp_path / "runs")
    assert trisweep("report", "smoke", cwd=tmp_path).returncode == 0
    database = tmp_path / "runs" / "mlflow.db"
    before = rows(database)
    database.write_bytes(database.read_bytes()[: database.stat().st_size // 2])
    done = trisweep("report", "smoke", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "is made anew from the sweeps' folders" in " ".join(done.stdout.split())
    assert "kept as runs/mlflow.db.old-" in done.stdout
    assert rows(database) == before
