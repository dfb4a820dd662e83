"""The allocation as a workplace, with a Slurm that answers as a real one does now and then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conf.errors import UsageError
from launcher import allocation_job
from launcher.allocation_job import AllocationJob
from launcher.allocation_sweep import run_inside
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.composed import load
from tests.conftest import RecordOf
from tests.launcher.conftest import Silent, SlurmOf
from tests.launcher.test_run_here import seeds


def test_an_allocation_whose_slurm_is_silent_is_one_message_and_its_job_is_run_again(
    folder: SweepFolder,
    record_of: RecordOf,
    slurm_of: SlurmOf,
    progress: Silent,
    tools: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(allocation_job, "PATIENCE_SECONDS", -1.0)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    tools(scontrol=f"echo $* >> {tmp_path}/asked; exit 1")
    sweep = Sweep(folder, record_of(seeds(1)))
    with pytest.raises(UsageError, match="Slurm does not say what this allocation has"):
        run_inside(sweep, slurm_of(), load([]).cluster, progress)
    folder.write_record(sweep.record)
    AllocationJob(slurm_of(), 1)(str(folder.allocation.path))
    assert (tmp_path / "asked").read_text().splitlines()[-1] == "requeue 7"
