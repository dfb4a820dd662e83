"""Where a sweep runs, and which folder is its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conf.errors import ConfigError, UsageError
from conf.overrides import Overrides
from launcher.where import choose_place, existing_folder
from sweeps.trial import SweepFolder
from tests.composed import composed
from tests.conftest import RecordOf
from tests.messages import refused
from tests.permissions import bound_by_permissions


@pytest.mark.parametrize("asked", ["launcher=allocation", "controller=slurm"])
def test_a_job_of_slurms_is_refused_for_a_sweep_on_this_machine(asked: str) -> None:
    key = asked.partition("=")[0]
    with refused(ConfigError, key):
        choose_place(Overrides.parse(["sweep=smoke", asked]), here=True, dry_run=False)
    assert choose_place(Overrides.parse(["sweep=smoke", "cluster=selene", asked]), here=False, dry_run=True).on_slurm


def test_a_sweep_whose_folder_would_have_too_long_a_name_is_refused_by_its_key(tmp_path: Path) -> None:
    asked = ["sweep=smoke", f"sweep.name={'s' * 200}", "cluster=selene", f"cluster.name={'c' * 60}"]
    with refused(ConfigError, "sweep.name"):
        assert choose_place(Overrides.parse(asked), here=False, dry_run=True).folder


def test_what_stands_for_a_hidden_value_in_a_command_that_is_shown_is_no_value() -> None:
    """A report advises the commands of its sweep so, and the jobs would get three stars for their token."""
    with refused(ConfigError, "slurm.environment.TOKEN"):
        choose_place(Overrides.parse(["sweep=smoke", "slurm.environment.TOKEN=***"]), here=False, dry_run=True)


def test_a_sweeps_folder_is_not_that_of_one_whose_name_goes_on(tmp_path: Path, record_of: RecordOf) -> None:
    record = record_of([{}])
    composition = composed(["sweep=smoke", f"output_dir={tmp_path}"])
    for seconds, (name, folder) in enumerate(
        [("smoke", "smoke-old"), ("smoke", "smoke-proxy"), ("smoke-big", "smoke-big-proxy")]
    ):
        (tmp_path / folder).mkdir()
        SweepFolder(tmp_path / folder).write_record(record.model_copy(update={"name": name}))
        os.utime(tmp_path / folder / "sweep.json", (seconds, seconds))
    assert existing_folder(composition).path.name == "smoke-proxy"
    with refused(UsageError):
        existing_folder(composed(["sweep=smoke", "cluster=local", f"output_dir={tmp_path}"]))


@pytest.mark.parametrize("name", ["smoke-before", "smoke-9", "smoke-before-today"])
def test_a_copy_of_a_sweeps_folder_does_not_take_over_its_name(tmp_path: Path, record_of: RecordOf, name: str) -> None:
    record = record_of([{}]).model_copy(update={"name": "smoke"})
    composition = composed(["sweep=smoke", f"output_dir={tmp_path}"])
    clusters = {trial.planned.cluster.name for trial in record.trials}
    own, copy = tmp_path / f"smoke-{clusters.pop()}", tmp_path / name
    for folder in (own, copy):
        folder.mkdir()
        SweepFolder(folder).write_record(record)
    os.utime(own / "sweep.json", (1, 1))
    assert existing_folder(composition).path == own
    (own / "sweep.json").unlink()
    assert existing_folder(composition).path == copy, "without another one, it is the sweep"


@pytest.mark.parametrize("is_of_sweep", [False, True])
def test_a_folder_that_may_not_be_read_is_not_taken_for_an_empty_one(tmp_path: Path, is_of_sweep: bool) -> None:
    composition = composed(["sweep=smoke", f"output_dir={tmp_path / 'runs'}"])
    folder = tmp_path / "runs" / "smoke-local"
    folder.mkdir(parents=True)
    (folder / "sweep.json").touch()
    closed = folder if is_of_sweep else folder.parent
    closed.chmod(0)
    with bound_by_permissions(), refused(UsageError, closed):
        existing_folder(composition)
    closed.chmod(0o700)
