"""A job that Slurm could not start and holds: nobody releases it, so the sweep ends it and submits another."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conf.types.sites import SlurmSpec
from launcher.slurm.query import GIVEN_UP
from launcher.slurm.reconcile import reconcile
from launcher.slurm.workplace import SlurmQueue
from sweeps.folder.submission import Submission, write_submission
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.composed import load
from tests.conftest import RecordOf
from train_core.trial.measurement import Outcome


@pytest.fixture
def slurm() -> SlurmSpec:
    return load([]).slurm


@pytest.fixture
def waits_for(
    folder: SweepFolder,
    record_of: RecordOf,
    slurm_submission: Callable[..., Submission],
    tools: Callable[..., None],
    tmp_path: Path,
) -> Callable[[str], Sweep]:
    """A sweep whose one job is in the queue for the given reason; what is cancelled is listed in `cancelled`."""
    sweep = Sweep(folder, record_of([{"training.seed": 1}]))
    write_submission(sweep.prepare(sweep.record.trials[0]), slurm_submission("7", job_name="ours-1"))

    def wait(reason: str, told: str = "") -> Sweep:
        told = told or f"echo '7|PENDING {reason}|N/A||ours-1|'"
        tools(squeue=told, sacct="true", scancel=f"echo $@ >> {tmp_path}/cancelled", scontrol="true")
        return sweep

    return wait


@pytest.mark.parametrize("reason", GIVEN_UP)
def test_a_job_that_slurm_holds_for_good_is_ended_and_said_to_have_met_a_bad_node(
    waits_for: Callable[[str], Sweep], slurm: SlurmSpec, tmp_path: Path, reason: str
) -> None:
    sweep = waits_for(reason)
    (waiting,) = reconcile(sweep.read())
    assert (waiting.outcome, reason in waiting.cause) == (Outcome.PENDING, True), "status only says it"
    (ended,) = SlurmQueue(slurm).read_trials(sweep)
    assert (ended.outcome, reason in ended.cause) == (Outcome.NODE_FAILED, True)
    assert "7" in (tmp_path / "cancelled").read_text().split()


def test_a_job_that_waits_for_its_turn_is_left_alone(
    waits_for: Callable[[str], Sweep], slurm: SlurmSpec, tmp_path: Path
) -> None:
    (waiting,) = SlurmQueue(slurm).read_trials(waits_for("Priority"))
    assert (waiting.outcome, waiting.cause) == (Outcome.PENDING, "")
    assert not (tmp_path / "cancelled").exists()


@pytest.mark.parametrize(("seconds_ago", "outcome"), [(5, Outcome.PENDING), (300, Outcome.NODE_FAILED)])
def test_a_heterogeneous_job_that_waits_for_a_component_that_has_ended_is_ended(
    waits_for: Callable[[str, str], Sweep], slurm: SlurmSpec, seconds_ago: int, outcome: Outcome
) -> None:
    when = datetime.datetime.fromtimestamp(time.time() - seconds_ago).isoformat(timespec="seconds")
    told = f"echo '7+0|PENDING Resources|N/A||ours-1|'; echo '7+1|FAILED NonZeroExitCode|{when}|node1|ours-1|'"
    (reading,) = SlurmQueue(slurm).read_trials(waits_for("", told))
    assert reading.outcome is outcome
