"""What somebody plants in a sweep's folder while its jobs are queued is refused, or nothing looks there.

`tests/launcher/test_snapshot.py` plants everything of the kind in the code.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

from conf.types.sites import SlurmSpec
from sweeps.folder.submission import read_submission
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.launcher.points_alone import submit_points
from tests.slurm.conftest import WaitUntil, has_ended
from train_core.trial.measurement import Fault, Outcome

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.usefixtures("slurm_cluster")]
ANOTHER_USER = 12345


def plant_code(folder: SweepFolder, planted: Path) -> Path:
    """Python imports a module of this name before any other, and does not compare what is compiled with its source."""
    (code,) = folder.code.iterdir()
    with ZipFile(code, "a") as archive:
        archive.writestr("sitecustomize.py", planted.read_text())
    return code


def plant_link(folder: SweepFolder, planted: Path) -> Path:
    code = plant_code(folder, planted)
    code.rename(planted.with_suffix(".zip"))
    code.symlink_to(planted.with_suffix(".zip"))
    return code


def plant_folder(folder: SweepFolder, planted: Path) -> Path:
    (code,) = folder.code.iterdir()
    code.unlink()
    code.mkdir()
    (code / "sitecustomize.py").symlink_to(planted)
    return code


def share_code(folder: SweepFolder, planted: Path) -> Path:
    """Whoever may write there could plant something once it has been checked."""
    (code,) = folder.code.iterdir()
    code.chmod(0o660)
    return code


def plant_work(folder: SweepFolder, planted: Path) -> Path:
    (work,) = folder.submitit.glob("*.pkl")
    work.write_bytes(b"cposix\nsystem\n(Vpython3 " + str(planted).encode() + b"\ntR.")
    return work


def plant_link_to_work(folder: SweepFolder, planted: Path) -> Path:
    (work,) = folder.submitit.glob("*.pkl")
    work.rename(planted.with_suffix(".pkl"))
    os.chown(planted.with_suffix(".pkl"), ANOTHER_USER, -1)
    work.symlink_to(planted.with_suffix(".pkl"))
    return work


def plant_link_to_trial(folder: SweepFolder, planted: Path) -> Path:
    """It names the program that is run."""
    (path,) = folder.path.glob("trials/*/trial.json")
    theirs = planted.with_suffix(".json")
    theirs.write_text(path.read_text().replace("-c", str(planted)))
    os.chown(theirs, ANOTHER_USER, -1)
    path.unlink()
    path.symlink_to(theirs)
    return path


def plant_where_nothing_looks(folder: SweepFolder, planted: Path) -> None:
    """Python is started by its whole path, with PYTHONSAFEPATH, and Slurm has had the script since the submission."""
    (trial,) = folder.path.glob("trials/*")
    for place in (folder.path, folder.code, folder.submitit, folder.path / "provenance", trial, trial / "logs"):
        place.mkdir(exist_ok=True)
        for name in ("sitecustomize.py", "usercustomize.py", "launcher.py", "planted.pth", "json.py", "python3"):
            (place / name).symlink_to(planted)
        (place / ".venv" / "bin").mkdir(parents=True)
        (place / ".venv" / "bin" / "python").symlink_to(planted)
        (place / ".venv" / "pyvenv.cfg").write_text(f"home = {planted.parent}\n")
        (place / "conf").symlink_to(planted.parent)
        (place / "dangling.py").symlink_to("/nowhere")
        os.mkfifo(place / "pipe.py")
    for script in folder.submitit.glob("*.sh"):
        script.write_text(f"#!/bin/bash\npython3 {planted}\n")


PLANTS: list[Callable[[SweepFolder, Path], Path | None]] = [
    plant_code,
    plant_link,
    plant_folder,
    share_code,
    plant_work,
    plant_link_to_work,
    plant_link_to_trial,
    plant_where_nothing_looks,
]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_what_was_planted_while_jobs_were_queued_does_not_run_and_is_named(
    record_of: RecordOf, slurm: SlurmSpec, wait_until: WaitUntil, tmp_path: Path
) -> None:
    """All plants are in sweeps of their own, whose jobs run side by side."""
    planted, trace = tmp_path / "planted.py", tmp_path / "trace"
    planted.write_text(f"#!/usr/bin/env python3\nimport pathlib\npathlib.Path({str(trace)!r}).touch()\n")
    planted.chmod(0o755)
    program = "trainer.command=[python3,-c,\"print('step 2 loss 4 time 0.5 s')\"]"
    record = record_of([{"training.seed": 1}], "trainer=command", program, "trainer.start=once")
    folders = [SweepFolder(tmp_path / plant.__name__) for plant in PLANTS]
    (trial,) = record.trials
    for folder in folders:
        submit_points(Sweep(folder, record), slurm.model_copy(update={"extra_sbatch": {"hold": True}}))
    named = [plant(folder, planted) for plant, folder in zip(PLANTS, folders, strict=True)]
    jobs = [read_submission(folder.trial(trial.trial_id)) for folder in folders]
    subprocess.run(["scontrol", "release", ",".join(str(job and job.job_id) for job in jobs)], check=True)
    for plant, folder, path in zip(PLANTS, folders, named, strict=True):
        (state,) = wait_until(folder, record, lambda states: has_ended(states[0]))
        _expect(state, path, plant.__name__)
    assert not trace.exists()


def _expect(state: TrialReading, named: Path | None, plant: str) -> None:
    if named is None:
        assert state.outcome is Outcome.COMPLETED, (plant, state.cause, state.traceback)
        return
    assert (state.outcome, state.measurement and state.measurement.why) == (Outcome.FAILED, Fault.INPUT), plant
    assert state.cause.startswith(str(named)) or f" {named} " in state.cause, (plant, state.cause)
    assert "\n" not in state.cause


@pytest.mark.thorough  # tests/launcher/slurm/test_verdict.py: what a job refuses is the cause
def test_trials_of_a_job_array_whose_code_was_deleted_have_one_cause_and_one_treatment(
    folder: SweepFolder, record_of: RecordOf, slurm: SlurmSpec, wait_until: WaitUntil
) -> None:
    record = record_of([{"training.seed": seed} for seed in (1, 2, 3)])
    submit_points(Sweep(folder, record), slurm.model_copy(update={"extra_sbatch": {"hold": True}}))
    job = read_submission(folder.trial(record.trials[0].trial_id))
    shutil.rmtree(folder.code)
    subprocess.run(["scontrol", "release", str(job and job.job_id).partition("_")[0]], check=True)
    states = wait_until(folder, record, lambda states: all(map(has_ended, states)))
    assert {(each.outcome, each.measurement and each.measurement.why) for each in states} == {
        (Outcome.FAILED, Fault.INPUT)
    }
    assert all("is not the code that was submitted" in each.cause for each in states), [each.cause for each in states]
