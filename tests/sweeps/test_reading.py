"""How a trial stands: one answer for everybody who asks, whatever its folder holds."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from conf.errors import UsageError
from launcher.control.attempts import may_run_again
from launcher.control.orders import retry_failed_trials
from sweeps.folder.submission import JobShape, Submission, write_submission
from sweeps.reading import INTERRUPTED, TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.audit import audited
from tests.conftest import BuildRecord
from tests.messages import refused
from tests.permissions import bound_by_permissions
from tests.steps import STEP
from train_core.checkpoints.checkpoint_folder import Facts, draft_of, publish
from train_core.process.lock import hold_lock
from train_core.trial.measurement import Measurement, Outcome, RankFailure

NUM_FOLDERS = 100
FAILURE = RankFailure(
    rank=1, outcome=Outcome.OUT_OF_MEMORY, cause="2 GiB too many", traceback="there", time=5.0, blamed=1
)


class Job(NamedTuple):
    """Slurm's word, as the launcher hands it on."""

    name: str
    is_live: bool
    is_waiting: bool = False
    cause: str = ""
    why_given_up: str = ""
    reason: str = ""


@pytest.fixture
def sweep(tmp_path: Path, build_record: BuildRecord) -> Sweep:
    """Two trials whose folders are ready, and whose jobs were submitted to Slurm."""
    sweep = Sweep(SweepFolder(tmp_path / "test-sweep"), build_record([{"training.seed": 1}, {"training.seed": 2}], ()))
    for trial in sweep.record.trials:
        write_submission(sweep.prepare(trial), submission("slurm"))
    return sweep


def submission(executor: str) -> Submission:
    return Submission.model_validate(
        {
            "executor": executor,
            "job_id": "7",
            "hostname": "login",
            "attempt": 3,
            "submitted": 1000.0,
            "shape": JobShape(num_nodes=1, tasks_per_node=1, uses_gpus=False),
            "output": "/nowhere/7_%t_log.out",
            "error": "/nowhere/7_%t_log.err",
        }
    )


def measurement(outcome: Outcome, fingerprint: str) -> Measurement:
    return Measurement(fingerprint=fingerprint, outcome=outcome, cause="made up", started=1.0, ended=2.0)


def end(sweep: Sweep, outcome: Outcome, fingerprint: str | None = None) -> None:
    """The first trial writes how it ended."""
    trial = sweep.record.trials[0]
    assert trial.experiment is not None
    sweep.folder_of(trial).write_measurement(measurement(outcome, fingerprint or trial.experiment.fingerprint))


def first(sweep: Sweep, job: Job | None = None) -> TrialReading:
    trial = sweep.record.trials[0]
    return TrialReading(folder=sweep.folder_of(trial), experiment=trial.experiment, trial=trial, job=job)


def figures_of(reading: TrialReading) -> object:
    """What is told of a trial beside how it stands, and read when it is asked for."""
    return reading.steps, reading.next_attempt


def is_to_run(reading: TrialReading) -> bool:
    return may_run_again(reading, 2, retry_cancelled=True) and not reading.awaits_slurm


def test_a_measurement_of_another_experiment_counts_for_nothing_and_is_measured_again(sweep: Sweep) -> None:
    end(sweep, Outcome.COMPLETED, fingerprint="0" * 12)
    reading = first(sweep, Job("COMPLETED", is_live=False))
    assert (reading.outcome, reading.measurement, reading.performance) == (Outcome.PENDING, None, None)
    assert reading.cause == "measurement.json belongs to another experiment and is ignored; the next run replaces it"
    assert is_to_run(reading)
    assert sweep.folder_of(reading.trial).measurement.exists(), "it is ignored, and not taken away"


@pytest.mark.parametrize("content", [b"", b'{"outcome": "COMPL', b"\xff\x00\xfe"])
def test_a_damaged_measurement_is_put_aside_and_measured_again(sweep: Sweep, content: bytes) -> None:
    sweep.folder_of(sweep.record.trials[0]).measurement.write_bytes(content)
    reading = first(sweep, Job("COMPLETED", is_live=False))
    (aside,) = reading.damaged_files
    assert aside.name.startswith("measurement.corrupt-")
    assert reading.cause == f"measurement.json was corrupt and is now {aside.name}; the next run measures again"
    assert reading.outcome is Outcome.PENDING
    assert is_to_run(reading)
    assert is_to_run(first(sweep)), "reading again does not change the answer"


def test_a_damaged_measurement_of_a_job_that_lives_is_not_run_beside_it(sweep: Sweep) -> None:
    sweep.folder_of(sweep.record.trials[0]).measurement.write_text("")
    reading = first(sweep, Job("RUNNING", is_live=True))
    assert reading.outcome is Outcome.RUNNING
    assert not is_to_run(reading)


def test_a_later_attempt_forgets_the_damaged_measurement_of_an_earlier_one(sweep: Sweep) -> None:
    folder = sweep.folder_of(sweep.record.trials[0])
    folder.measurement.write_text("")
    aside = first(sweep).damaged_files[0]
    later = aside.stat().st_ctime + 5
    os.utime(folder.submission, (later, later))
    reading = first(sweep)
    assert (reading.outcome, reading.cause, is_to_run(reading)) == (Outcome.PENDING, "", False)


def test_a_measurement_that_is_a_folder_is_put_aside(sweep: Sweep) -> None:
    sweep.folder_of(sweep.record.trials[0]).measurement.mkdir()
    reading = first(sweep)
    assert [path.is_dir() for path in reading.damaged_files] == [True]
    assert (reading.outcome, is_to_run(reading)) == (Outcome.PENDING, True)


@pytest.mark.parametrize("name", ["trial.json", "submission.json", "failures/rank-00001.json", "measurement.json"])
def test_a_damaged_file_is_put_aside_named_and_hurts_its_own_trial_only(sweep: Sweep, name: str) -> None:
    path = sweep.folder_of(sweep.record.trials[0]).path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\x80\x81 no text at all")
    hurt, unharmed = sweep.read()
    assert [aside.name.startswith(f"{path.stem}.corrupt-") for aside in hurt.damaged_files] == [True]
    assert not path.exists()
    assert unharmed.damaged_files == ()
    assert [reading.outcome for reading in (hurt, unharmed)] == [Outcome.PENDING] * 2


def test_a_damaged_file_in_a_folder_that_cannot_be_written_ends_nothing(sweep: Sweep) -> None:
    folder = sweep.folder_of(sweep.record.trials[0])
    folder.measurement.write_text("")
    folder.put_aside = lambda path: None  # type: ignore[method-assign]  # root may rename anywhere
    reading = TrialReading(folder=folder, experiment=sweep.record.trials[0].experiment, trial=sweep.record.trials[0])
    assert (reading.outcome, reading.damaged_files) == (Outcome.PENDING, ())


@pytest.mark.parametrize("name", ["measurement.json", "submission.json", "attempts.jsonl", "metrics.jsonl", "."])
@pytest.mark.parametrize("mode", [0o000, 0o100])
def test_what_may_not_be_read_is_not_taken_for_what_is_not_there(sweep: Sweep, name: str, mode: int) -> None:
    path = sweep.folder_of(sweep.record.trials[0]).path / name
    if name != ".":
        path.touch()
    path.chmod(mode)
    with bound_by_permissions(), refused(UsageError):
        figures_of(first(sweep))
    path.chmod(0o700)
    assert not sweep.folder_of(sweep.record.trials[0]).damaged_files()


def test_a_ranks_failure_speaks_where_slurm_says_nothing(sweep: Sweep) -> None:
    sweep.folder_of(sweep.record.trials[0]).write_failure(FAILURE)
    reading = first(sweep)
    assert (reading.outcome, reading.cause) == (Outcome.OUT_OF_MEMORY, "2 GiB too many")
    assert (reading.failing_rank, reading.traceback) == (1, "there")


def test_a_ranks_failure_is_not_the_end_while_its_job_lives(sweep: Sweep) -> None:
    sweep.folder_of(sweep.record.trials[0]).write_failure(FAILURE)
    runs = first(sweep, Job("RUNNING", is_live=True))
    assert (runs.outcome, runs.cause, runs.failing_rank) == (Outcome.RUNNING, "2 GiB too many", None)
    requeued = first(sweep, Job("PENDING", is_live=True, is_waiting=True))
    assert (requeued.outcome, requeued.cause) == (Outcome.PENDING, "")


def test_steps_of_an_earlier_attempt_are_no_progress_of_a_job_that_waits_again(sweep: Sweep) -> None:
    folder = sweep.folder_of(sweep.record.trials[0])
    for number in range(1, 6):
        folder.append_metrics(STEP.model_copy(update={"step": number, "loss": 10.0 - number}))
    running = first(sweep, Job("RUNNING", is_live=True))
    assert (running.num_steps_done, running.loss) == (5, 5.0)
    requeued = Job("PENDING", is_live=True, is_waiting=True)
    waits = first(sweep, requeued)
    assert (waits.num_steps_done, waits.loss, waits.step_seconds) == (0, None, None)
    draft_of(folder.checkpoints, 3).mkdir(parents=True)
    (draft_of(folder.checkpoints, 3) / ".metadata").touch()
    model = waits.planned.model
    publish(folder.checkpoints, Facts(step=3, num_updates=3, label="", model=model, loss_scale={}, training={}))
    goes_on = first(sweep, requeued)
    assert (goes_on.num_steps_done, goes_on.loss) == (3, 7.0)


def test_whoever_looks_at_a_training_with_a_damaged_checkpoint_is_not_warned_each_time(
    sweep: Sweep, caplog: pytest.LogCaptureFixture
) -> None:
    folder = sweep.folder_of(sweep.record.trials[0])
    folder.append_metrics(STEP.model_copy(update={"step": 1}))
    (folder.checkpoints / "step-000001").mkdir(parents=True)
    assert first(sweep, Job("PENDING", is_live=True, is_waiting=True)).num_steps_done == 0
    assert not caplog.records


def test_what_the_trial_itself_wrote_beats_every_other_witness(sweep: Sweep) -> None:
    sweep.folder_of(sweep.record.trials[0]).write_failure(FAILURE)
    end(sweep, Outcome.COMPLETED)
    assert first(sweep, Job("RUNNING", is_live=True)).outcome is Outcome.COMPLETED


@pytest.mark.parametrize(
    ("outcome", "runs_again", "runs_when_retried"),
    [
        (Outcome.COMPLETED, False, False),
        (Outcome.OUT_OF_MEMORY, False, False),
        (Outcome.FAILED, False, True),
        (Outcome.TIMED_OUT, False, True),
        (Outcome.INFEASIBLE, True, True),  # of a place that was too small, which another command may not have
        (Outcome.CANCELLED, True, True),
        (Outcome.NODE_FAILED, True, True),
    ],
)
def test_what_ended_for_no_fault_of_its_own_runs_again(
    sweep: Sweep, outcome: Outcome, runs_again: bool, runs_when_retried: bool
) -> None:
    end(sweep, outcome)
    assert is_to_run(first(sweep)) == runs_again
    assert (is_to_run(first(sweep)) or bool(retry_failed_trials(sweep))) == runs_when_retried


def test_a_lost_node_counts_towards_the_next_attempt_and_its_limit(sweep: Sweep) -> None:
    end(sweep, Outcome.NODE_FAILED)
    assert first(sweep).next_attempt == 4
    assert may_run_again(first(sweep), 1, retry_cancelled=True)
    sweep.prepare(sweep.record.trials[0])
    end(sweep, Outcome.NODE_FAILED)
    assert not may_run_again(first(sweep), 1, retry_cancelled=True)
    assert retry_failed_trials(sweep) == [first(sweep).trial.trial_id]


def test_a_trial_of_this_machine_runs_while_its_lock_is_held_and_was_interrupted_otherwise(sweep: Sweep) -> None:
    folder = sweep.folder_of(sweep.record.trials[0])
    write_submission(folder, submission("local"))
    assert (first(sweep).outcome, first(sweep).cause) == (Outcome.PENDING, INTERRUPTED)
    with hold_lock(folder.running_lock):
        assert first(sweep).outcome is Outcome.RUNNING


def test_a_kept_reading_does_not_follow_the_folder(sweep: Sweep) -> None:
    before = first(sweep)
    end(sweep, Outcome.COMPLETED)
    assert (before.outcome, first(sweep).outcome) == (Outcome.PENDING, Outcome.COMPLETED)


def test_a_trial_that_ended_costs_one_file_and_one_that_runs_two_and_a_listing_however_many_there_are(
    sweep: Sweep,
) -> None:
    end(sweep, Outcome.COMPLETED)
    trials = [
        sweep.record.trials[0].model_copy(update={"trial_id": f"trial-{number:05d}"}) for number in range(NUM_FOLDERS)
    ]
    source = sweep.folder_of(sweep.record.trials[0])
    source.append_metrics(STEP)
    files = [path for path in source.path.iterdir() if path.is_file()]
    for number, trial in enumerate(trials):
        folder = sweep.folder_of(trial)
        folder.path.mkdir()
        for path in files:
            if number % 2 or path != source.measurement:  # every second trial has not ended
                os.link(path, folder.path / path.name)
    with audited("open", "os.listdir", "os.scandir") as accesses:
        outcomes = Counter(sweep.read_trial(trial).outcome for trial in trials)
    assert outcomes == {Outcome.COMPLETED: NUM_FOLDERS // 2, Outcome.RUNNING: NUM_FOLDERS // 2}
    running = [name for trial in trials[::2] for name in ("open submission.json", f"os.listdir {trial.trial_id}")]
    assert Counter(accesses) == Counter(["open measurement.json"] * NUM_FOLDERS + running)


def test_how_far_a_trial_came_is_looked_up_once(sweep: Sweep) -> None:
    end(sweep, Outcome.COMPLETED)
    trial = sweep.record.trials[0]
    sweep.folder_of(trial).append_metrics(STEP)
    reading = sweep.read_trial(trial)
    with audited("open") as accesses:
        assert [reading.num_steps_done for _ in range(3)] == [STEP.step] * 3
    assert accesses == ["open metrics.jsonl"]
