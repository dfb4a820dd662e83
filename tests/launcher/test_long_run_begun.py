"""Trainings as `status` and `cancel` find them in their folders."""

from __future__ import annotations

import re
import shlex
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from cli.commands.control import cancel
from cli.output.status_table import status_table
from conf.errors import UsageError
from conf.overrides import Overrides
from launcher.cancel import cancel_training
from launcher.long_run import LongRun, damaged_trainings, long_run, training_of, trainings_of, write_long_run
from sweeps.reading import STOPPED
from sweeps.trial import SweepFolder
from tests import steps
from tests.conftest import RecordOf
from tests.messages import refused
from tests.permissions import bound_by_permissions
from train_core.process.lock import hold_lock
from train_core.trial.measurement import Outcome

STEPS = ["training.num_steps=50"]
STEP = steps.STEP.model_copy(update={"step": 7, "num_steps": 50})


@pytest.fixture
def output_dir(folder: SweepFolder, record_of: RecordOf) -> Path:
    """Two trainings of the sweep `test`, one of another sweep, and a folder of something else."""
    folder.path.mkdir(parents=True)
    folder.write_record(record_of([{"batch.micro_batch_size": 1}]))
    for name, sweep in (("second", "test"), ("first", "test"), ("foreign", "other")):
        write_long_run(long_run(folder, Overrides.parse(STEPS), name), sweep, Overrides.parse(STEPS))
    junk = folder.path.parent / "train" / "junk"
    junk.mkdir()
    (junk / "trial.json").write_text("{}")
    return folder.path.parent


def outcome_and_cause(run: LongRun) -> tuple[Outcome | None, str]:
    reading = run.read()
    return reading.outcome, reading.cause


@pytest.mark.slow
def test_a_sweep_knows_its_trainings_by_name(output_dir: Path) -> None:
    assert [run.folder.path.name for run in trainings_of(output_dir, "test")] == ["first", "second"]
    assert trainings_of(output_dir, "22b") == []
    assert training_of(output_dir, "test", "second").experiment.training.num_steps == 50


@pytest.mark.slow
def test_a_training_that_is_not_there_is_one_message(output_dir: Path) -> None:
    with refused(UsageError):
        training_of(output_dir, "test", "foreign")
    with refused(UsageError):
        training_of(output_dir, "22b", "first")
    with refused(UsageError, "trial.json"):
        training_of(output_dir, "test", "junk")


def test_a_file_that_is_no_record_is_damaged_and_a_folder_that_may_not_be_looked_into_is_not(tmp_path: Path) -> None:
    """Others may keep theirs private beside ours."""
    for name in ("list", "private"):
        (tmp_path / "train" / name).mkdir(parents=True)
        (tmp_path / "train" / name / "trial.json").write_text("[]")
    (tmp_path / "train" / "private").chmod(0)
    with bound_by_permissions():
        assert trainings_of(tmp_path, "test") == []
        assert [folder.path.name for folder in damaged_trainings(tmp_path)] == ["list"]
    (tmp_path / "train" / "private").chmod(0o700)


@pytest.mark.slow
def test_a_training_here_waits_runs_and_stops(output_dir: Path) -> None:
    run = training_of(output_dir, "test", "first")
    assert outcome_and_cause(run) == (Outcome.PENDING, "")
    with hold_lock(run.folder.running_lock):
        assert outcome_and_cause(run) == (Outcome.RUNNING, "")
    run.folder.append_metrics(STEP)
    assert outcome_and_cause(run) == (Outcome.PENDING, STOPPED)
    screen = StringIO()
    console = Console(width=200, file=screen)
    console.print(status_table([run.read()], 200))
    assert STOPPED in screen.getvalue()


@pytest.mark.slow
def test_the_command_that_goes_on_with_a_cancelled_training_is_its_own(
    output_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without its name and what it was begun with, another training would begin, or none."""
    monkeypatch.setattr("launcher.cancel.cancel_training", lambda run: "77")
    cancel(str(next(output_dir.glob("*/sweep.json")).parent), ["model=tiny", "slurm=default"], training="second")
    command = re.findall("`(.*)`", capsys.readouterr().out)[0]
    words = shlex.split(command)
    assert words[:6] == ["trisweep", "train", "--name", "second", "--from-best", "test"]
    own = Overrides.parse(words[6:]).without({"output_dir"})
    assert own.texts == ("slurm=default", *STEPS)


@pytest.mark.slow
def test_only_a_job_can_be_cancelled(output_dir: Path) -> None:
    with refused(UsageError):
        cancel_training(training_of(output_dir, "test", "first"))
