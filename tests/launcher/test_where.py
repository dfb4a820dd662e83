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


@pytest.mark.parametrize("asked", ["launcher=allocation", "controller=slurm"])
def test_a_job_of_slurms_is_refused_for_a_sweep_on_this_machine(asked: str) -> None:
    key = asked.partition("=")[0]
    with pytest.raises(ConfigError, match=f"{key} = .*would run on this machine.*{key}="):
        choose_place(Overrides.parse(["sweep=smoke", asked]), here=True, dry_run=False)
    assert choose_place(Overrides.parse(["sweep=smoke", "cluster=selene", asked]), here=False, dry_run=True).on_slurm


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
    with pytest.raises(UsageError, match=r"No sweep smoke has been started in .*smoke-local"):
        existing_folder(composed(["sweep=smoke", "cluster=local", f"output_dir={tmp_path}"]))
