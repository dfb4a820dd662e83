"""A folder where a file of a sweep should be: one message, and the trial alone where it is a trial's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conf.errors import UsageError
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import BuildRecord
from tests.messages import refused
from tests.results.conftest import finish, performance


@pytest.fixture
def folder(tmp_path: Path, build_record: BuildRecord) -> SweepFolder:
    record = build_record([{"training.seed": seed} for seed in (1, 2)], [])
    folder = SweepFolder(tmp_path / "test-local")
    folder.write_record(record)
    for trial in record.trials:
        finish(folder, trial, performance(100.0))
    return folder


@pytest.mark.parametrize("name", ["record", "journal"])
def test_a_sweeps_file_that_is_a_folder_is_named_with_what_to_do(folder: SweepFolder, name: str) -> None:
    path: Path = getattr(folder, name)
    path.unlink(missing_ok=True)
    path.mkdir()
    with refused(UsageError, path.name):
        Sweep.stored_in(folder)


def test_a_trials_steps_that_are_a_folder_are_put_aside_and_the_others_are_read(folder: SweepFolder) -> None:
    first, second = Sweep.stored_in(folder).read()
    first.folder.metrics.unlink(missing_ok=True)
    first.folder.metrics.mkdir()
    assert first.folder.read_step_lines() == b""
    assert [path.name.partition(".")[0] for path in first.folder.damaged_files()] == ["metrics"]
    assert [each.performance is not None for each in Sweep.stored_in(folder).read()] == [True, True]
    assert second.folder.damaged_files() == []


def test_a_damaged_record_of_a_sweep_with_a_longer_name_does_not_hide_the_older_one(folder: SweepFolder) -> None:
    output_dir, other = folder.path.parent, SweepFolder(folder.path.parent / "test-big-local")
    other.path.mkdir()
    other.record.write_text("{torn")
    os.utime(folder.record, (1.0, 1.0))
    found = SweepFolder.planned_last(output_dir, "test")
    assert found is not None
    assert found.path == folder.path
    folder.record.write_text("{torn as well")
    with refused(UsageError, "sweep.json"):
        SweepFolder.planned_last(output_dir, "test")
    folder.record.unlink()
    with refused(UsageError, "sweep.json"):
        SweepFolder.planned_last(output_dir, "test")
