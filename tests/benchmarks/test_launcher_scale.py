"""The benchmark of commands at scale, on sweeps of four trials."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.launcher_scale import commands_of
from benchmarks.made_up_slurm import MadeUpSlurm
from benchmarks.measured_command import measure
from launcher.slurm.job_records import has_record


def test_a_command_is_run_and_what_it_took_is_counted() -> None:
    taken = measure("list", ["list", "sweep"], os.environ)
    assert taken.opened > 0 < taken.statted
    assert taken.mebibytes > 1 < taken.printed
    assert taken.fsyncs == 0


def test_the_made_up_accounting_has_records_of_jobs_that_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = MadeUpSlurm(tmp_path)
    (tmp_path / "jobs" / "1").write_text("ours 3\n")
    monkeypatch.setenv("PATH", slurm.environment["PATH"])
    slurm.put_jobs("RUNNING None")
    assert not has_record(["1_0", "1_3"])
    slurm.put_jobs("COMPLETED None")
    assert has_record(["1_3"])
    assert not has_record(["1_4"])


@pytest.mark.thorough  # than the one above
def test_it_takes_two_sweeps_through_all_that_a_made_up_slurm_says(tmp_path: Path) -> None:
    assert len(commands_of(tmp_path, 4, reports=False)) == 10
