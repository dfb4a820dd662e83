"""`trisweep metrics`: a file for node_exporter, and event files for TensorBoard from the report."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from cli.commands.metrics import metrics
from conf.errors import UsageError
from tests.cli.conftest import Command
from tests.messages import refused, said
from tests.permissions import bound_by_permissions


def test_the_file_is_for_others_to_read_and_a_damaged_sweep_is_counted(
    finished: Path, tmp_path: Path, trisweep: Command
) -> None:
    shutil.copytree(finished / "runs", tmp_path / "runs")
    damaged = tmp_path / "runs" / "damaged-local"
    damaged.mkdir()
    (damaged / "sweep.json").write_text("{")
    done = trisweep("metrics", "--out", "sweeps.prom", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "damaged-local is left out" in " ".join(done.stderr.split())
    file = tmp_path / "sweeps.prom"
    assert 'trisweep_trials{outcome="COMPLETED",sweep="smoke-local"} 3.0' in file.read_text()
    assert "trisweep_unreadable_sweeps 1.0" in file.read_text()
    assert file.stat().st_mode & stat.S_IROTH


def test_a_sweep_whose_folder_may_not_be_read_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a-local").mkdir(mode=0)
    with bound_by_permissions():
        metrics([f"output_dir={tmp_path}"])
    assert "trisweep_unreadable_sweeps 1.0" in capsys.readouterr().out
    tmp_path.chmod(0)
    with bound_by_permissions(), refused(UsageError, tmp_path):
        metrics([f"output_dir={tmp_path}"])
    tmp_path.chmod(0o700)


@pytest.mark.parametrize("file", ["sweeps.txt", "absent/sweeps.prom"])
def test_a_file_that_nothing_would_read_is_refused(file: str, tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("metrics", "--out", file, cwd=tmp_path)
    said(done, f"--out = '{file}'")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_report_writes_event_files_of_a_sweep_that_was_run_without_them(
    finished: Path, tmp_path: Path, trisweep: Command
) -> None:
    shutil.copytree(finished / "runs", tmp_path / "runs")
    done = trisweep("report", "smoke", "tracking.also=[tensorboard]", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    events = list((tmp_path / "runs/smoke-local/tensorboard").glob("*/events.out.*"))
    assert len(events) == 3, "one for each trial that ran"


def test_another_tracker_is_refused(tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("sweep", "smoke", "tracking.also=[comet]", cwd=tmp_path)
    said(done, "tracking.also")
