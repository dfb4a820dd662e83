"""Code that somebody puts in the place of what was submitted, while the job is queued, does not run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from conf.types.sites import SlurmSpec
from sweeps.folder.submission import read_submission
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.launcher.points_alone import submit_points
from tests.slurm.conftest import WaitUntil, has_ended
from train_core.measurement import Outcome

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.usefixtures("slurm_cluster")]
Plant = Callable[[SweepFolder, Path], None]
PLANTED = "import pathlib\npathlib.Path({!r}).touch()\n"


def plant_code(folder: SweepFolder, trace: Path) -> None:
    (code,) = folder.code.iterdir()
    (code / "launcher" / "slurm" / "task.py").write_text(PLANTED.format(str(trace)))
    shutil.rmtree(code / "launcher" / "slurm" / "__pycache__")


def plant_compiled_code(folder: SweepFolder, trace: Path) -> None:
    """Python does not compare what is compiled with its source."""
    (code,) = folder.code.iterdir()
    task = code / "launcher" / "slurm" / "task.py"
    before = task.read_text()
    plant_code(folder, trace)
    subprocess.run(["python3", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", task], check=True)
    task.write_text(before)


def plant_link(folder: SweepFolder, trace: Path) -> None:
    """Python imports a module of this name before any other."""
    (code,) = folder.code.iterdir()
    elsewhere = trace.with_name("elsewhere.py")
    elsewhere.write_text(PLANTED.format(str(trace)))
    (code / "sitecustomize.py").symlink_to(elsewhere)


def plant_work(folder: SweepFolder, trace: Path) -> None:
    (work,) = folder.submitit.glob("*.pkl")
    work.write_bytes(b"cposix\nsystem\n(Vtouch " + str(trace).encode() + b"\ntR.")


@pytest.mark.parametrize("plant", [plant_code, plant_compiled_code, plant_link, plant_work])
def test_what_was_replaced_while_the_job_was_queued_does_not_run(
    folder: SweepFolder, record_of: RecordOf, slurm: SlurmSpec, wait_until: WaitUntil, tmp_path: Path, plant: Plant
) -> None:
    """Who may write in a folder above can put another one in the place of the sweep's."""
    trace = tmp_path / "planted"
    sweep = Sweep(folder, record_of([{"training.seed": 1}]))
    submit_points(sweep, slurm.model_copy(update={"extra_sbatch": {"hold": True}}))
    plant(folder, trace)
    submission = read_submission(folder.trial(sweep.record.trials[0].trial_id))
    assert submission is not None
    subprocess.run(["scontrol", "release", str(submission.job_id)], check=True)
    (state,) = wait_until(folder, sweep.record, lambda states: has_ended(states[0]))
    assert not trace.exists()
    assert state.outcome is Outcome.FAILED
    said = submission.error_of(0)
    log = said if said.exists() else folder.submitit / f"{submission.job_id}_0_log.err"
    assert "somebody has" in log.read_text()
