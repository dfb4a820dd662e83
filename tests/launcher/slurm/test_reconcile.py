"""What Slurm's word adds to a folder whose files are damaged, foreign or silent: stand-ins answer for Slurm."""

from __future__ import annotations

import os
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import sweeps.trial
from cli.commands.control import retry
from cli.commands.status import job_lines
from cli.output.next_command import next_command
from cli.output.status_table import status_table
from launcher.control.attempts import may_run_again
from launcher.folder_lock import lock_folder
from launcher.long_run import best_of
from launcher.slurm.query import FRESH
from launcher.slurm.reconcile import reconcile
from sweeps.folder.journal import Cancelled, Finished, Journal
from sweeps.folder.submission import Submission, write_submission
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.audit import audited
from tests.collected_table import collect
from tests.conftest import RecordOf
from tests.results.conftest import finish, performance
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Measurement, Outcome, RankFailure

NAME = "trisweep-test-1a2b"
CLUSTER = "echo 'ClusterName = alps'; echo 'Configuration data as of 2026-11-22T05:40:41'"


@pytest.fixture
def sweep(folder: SweepFolder, record_of: RecordOf, slurm_submission: Callable[..., Submission]) -> Sweep:
    """Two trials, submitted as one job array some minutes ago."""
    sweep = Sweep(folder, record_of([{"training.seed": 1}, {"training.seed": 2}]))
    for element, trial in enumerate(sweep.record.trials):
        job = slurm_submission(f"12_{element}", job_name=NAME, cluster="alps", element=element)
        write_submission(sweep.prepare(trial), job)
    return sweep


@pytest.fixture
def slurm_says(tools: Callable[..., None]) -> Callable[[str], None]:
    """Both elements of the array are in this state; those that ended did so long ago."""

    def install(state: str) -> None:
        lines = "; ".join(f"echo '12_{element}|{state}|2026-11-22T05:00:00||{NAME}|'" for element in (0, 1))
        tools(scontrol=CLUSTER, squeue=lines, sacct="true")

    return install


def first_folder(sweep: Sweep) -> TrialFolder:
    return sweep.folder_of(sweep.record.trials[0])


def is_to_run(reading: TrialReading) -> bool:
    """As `submit` decides."""
    return may_run_again(reading, 1, retry_cancelled=True) and not reading.awaits_slurm


def test_a_damaged_measurement_does_not_become_a_failure_and_is_measured_again(
    sweep: Sweep, slurm_says: Callable[[str], None]
) -> None:
    slurm_says("COMPLETED")
    first_folder(sweep).measurement.write_text("")
    for _ in range(2):
        hurt, silent = reconcile(sweep.read())
        assert (hurt.outcome, is_to_run(hurt)) == (Outcome.PENDING, True)
        assert "was corrupt" in hurt.cause
        assert (silent.outcome, is_to_run(silent)) == (Outcome.FAILED, False)
    assert not first_folder(sweep).measurement.exists()


def test_a_foreign_measurement_is_the_same_to_status_report_long_training_and_the_next_sweep(
    sweep: Sweep, slurm_says: Callable[[str], None]
) -> None:
    slurm_says("COMPLETED")
    foreign = Measurement(fingerprint="0" * 12, outcome=Outcome.COMPLETED, cause="", started=1.0, ended=2.0)
    first_folder(sweep).write_measurement(foreign)
    readings = reconcile(sweep.read())
    ignored = "measurement.json belongs to another experiment and is ignored; the next run replaces it"
    assert shown(readings).count(ignored) == 1
    assert reported(sweep, readings) == (readings[0].outcome, readings[0].cause) == (Outcome.PENDING, ignored)
    assert best_of(sweep).trial == readings[0].trial, "predicted, as nothing has been measured"
    assert is_to_run(readings[0])


@pytest.mark.parametrize(("state", "outcome"), [("RUNNING", Outcome.RUNNING), ("FAILED", Outcome.OUT_OF_MEMORY)])
def test_a_ranks_failure_is_the_same_to_status_and_report(
    sweep: Sweep, slurm_says: Callable[[str], None], state: str, outcome: Outcome
) -> None:
    slurm_says(state)
    failure = RankFailure(rank=1, outcome=Outcome.OUT_OF_MEMORY, cause="2 GiB too many", traceback="t", time=5.0)
    first_folder(sweep).write_failure(failure)
    readings = reconcile(sweep.read())
    assert reported(sweep, readings) == (readings[0].outcome, readings[0].cause) == (outcome, "2 GiB too many")
    assert "2 GiB too many" in shown(readings)


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "TIMEOUT"])
def test_what_a_job_has_printed_because_its_disk_was_full_is_its_measurement(
    sweep: Sweep, slurm_says: Callable[[str], None], state: str
) -> None:
    """`slurm/test_other_trainer.py` fills the disk of a job."""
    slurm_says(state)
    first, second = sweep.read()
    for reading, fingerprint in ((first, first.planned.fingerprint), (second, "of another experiment")):
        measured = Measurement(fingerprint=fingerprint, outcome=Outcome.COMPLETED, cause="", started=1.0, ended=2.0)
        assert reading.submission is not None
        reading.submission.output_of(0).write_text(f"hello\ntrisweep measured: {measured.model_dump_json()}\n")
    outcomes = [reading.outcome for reading in reconcile(sweep.read())]
    assert outcomes[0] is Outcome.COMPLETED
    assert outcomes[1] not in (Outcome.COMPLETED, Outcome.RUNNING)
    assert [reading.outcome for reading in sweep.read()] == outcomes


def test_what_a_job_of_this_machine_has_printed_is_its_measurement(
    folder: SweepFolder, record_of: RecordOf, slurm_submission: Callable[..., Submission]
) -> None:
    sweep = Sweep(folder, record_of([{"training.seed": 1}]))
    (trial,) = sweep.record.trials
    local = slurm_submission("4194303").model_copy(update={"executor": "local"})
    write_submission(sweep.prepare(trial), local)
    fingerprint = trial.planned.fingerprint
    measured = Measurement(fingerprint=fingerprint, outcome=Outcome.COMPLETED, cause="", started=1.0, ended=2.0)
    local.output_of(0).write_text(f"trisweep measured: {measured.model_dump_json()}\n")
    assert [reading.outcome for reading in reconcile(sweep.read())] == [Outcome.COMPLETED]
    assert sweep.folder_of(trial).read_measurement() == measured


@pytest.mark.parametrize("name", ["trial.json", "submission.json", "failures/rank-00001.json", "measurement.json"])
def test_a_damaged_file_is_named_and_hurts_its_own_trial_only(
    sweep: Sweep, slurm_says: Callable[[str], None], name: str
) -> None:
    slurm_says("FAILED")
    path = first_folder(sweep).path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\x80\x81 no text at all")
    readings = reconcile(sweep.read())
    (aside,) = readings[0].damaged_files
    assert aside.name in shown(readings).replace("\n", "").replace(" ", "")
    assert list(collect(sweep.record, readings)["quarantined"]) == [aside.name, ""]
    assert [reading.outcome for reading in readings][1] is Outcome.FAILED
    assert readings[1].measurement is not None


def reported(sweep: Sweep, readings: list[TrialReading]) -> tuple[str, str]:
    """Outcome and cause of the first trial in the table that reports are made of."""
    row = collect(sweep.record, readings).iloc[0]
    return row["outcome"], row["cause"]


def shown(readings: list[TrialReading]) -> str:
    console = Console(width=300, file=StringIO())
    console.print(status_table(readings, 300))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(("state", "seconds"), [("NODE_FAIL", 50), ("COMPLETED", 20)])
def test_a_job_that_has_just_ended_is_said_to_have_ended_while_its_last_word_is_waited_for(
    sweep: Sweep, tools: Callable[..., None], state: str, seconds: int
) -> None:
    ends = f"2026-11-22T05:{39 if seconds > 41 else 40}:{(41 - seconds) % 60:02d}"
    tools(scontrol=CLUSTER, squeue=f"echo '12_0|{state} None|{ends}|n1|{NAME}|'", sacct="true")
    first = reconcile(sweep.read())[0]
    assert (first.outcome, first.awaits_slurm) == (Outcome.RUNNING, True)
    assert first.cause == f"its job has ended ({state}), and its last word is waited for, for up to a minute"


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("JobHeldAdmin", "PartitionDown", "1 for JobHeldAdmin, 1 for PartitionDown"),
        ("QOSMaxJobsPerUserLimit", "QOSMaxJobsPerUserLimit", "2 for QOSMaxJobsPerUserLimit"),
        ("None", "None", ""),
    ],
)
def test_status_says_for_what_jobs_wait_in_slurm(
    sweep: Sweep, tools: Callable[..., None], first: str, second: str, words: str
) -> None:
    lines = [f"echo '12_{element}|PENDING {why}|N/A||{NAME}|'" for element, why in enumerate((first, second))]
    tools(scontrol=CLUSTER, squeue="; ".join(lines), sacct="true")
    said = shown(reconcile(sweep.read()))
    assert (f"Waiting in Slurm: {words}." in said) if words else ("Waiting in Slurm" not in said)


@pytest.mark.parametrize("squeue", ["exit 1", "echo '12_0|RUNN'"])
def test_that_slurm_does_not_answer_is_said(sweep: Sweep, tools: Callable[..., None], squeue: str) -> None:
    tools(scontrol=CLUSTER, squeue=squeue, sacct="true")
    told = list[str]()
    assert {each.outcome for each in reconcile(sweep.read(), tell_silence=lambda: told.append("silent"))} == {
        Outcome.PENDING
    }
    assert told == ["silent"]


@pytest.mark.parametrize(
    ("squeue", "words"),
    [
        ("echo '47|RUNNING None|N/A|n1|ours|'", "job 47; it goes on with the sweep."),
        (
            "echo '47|PENDING JobHeldUser|N/A||ours|'",
            "job 47 (PENDING, JobHeldUser); it goes on with the sweep once it starts.",
        ),
        ("echo '47|SUSPENDED None|N/A|n1|ours|'", "job 47 (SUSPENDED)."),
        ("true", "job 47 has ended; `{resume}` submits it again."),
        ("exit 1", "job 47; how it stands is not known here."),
    ],
)
def test_status_says_of_the_controller_what_slurm_says_of_it(
    sweep: Sweep,
    tools: Callable[..., None],
    slurm_submission: Callable[..., Submission],
    squeue: str,
    words: str,
) -> None:
    tools(scontrol=CLUSTER, squeue=squeue, sacct="true")
    write_submission(sweep.folder.controller, slurm_submission("47", job_name="ours", cluster="alps"))
    (line,) = job_lines(sweep, FRESH)
    assert line == f"Controller: {words.format(resume=next_command('resume', sweep))}"
    for end in (Cancelled(trial_id=None), Finished(because="every listed point was tried")):
        Journal(sweep.folder.journal).append(end)
        assert job_lines(sweep, FRESH) == []


def test_whoever_goes_on_with_a_sweep_whose_controller_has_ended_is_named(
    sweep: Sweep, tools: Callable[..., None], slurm_submission: Callable[..., Submission]
) -> None:
    tools(scontrol=CLUSTER, squeue="true", sacct="true")
    write_submission(sweep.folder.controller, slurm_submission("47", job_name="ours", cluster="alps"))
    with lock_folder(sweep.folder):
        (line,) = job_lines(sweep, FRESH)
    assert (
        line == f"Controller: job 47 has ended; process {os.getpid()} on {os.uname().nodename} goes on with the sweep."
    )


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("TIMEOUT", "2 trials to run again"),
        ("OUT_OF_MEMORY", "No trial has failed: 0 trials measured, 2 out of memory (only `trisweep retry test"),
    ],
)
def test_what_slurm_ended_and_nobody_has_seen_is_run_again_where_it_failed(
    sweep: Sweep,
    slurm_says: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
    state: str,
    words: str,
) -> None:
    slurm_says(state)
    sweep.folder.write_record(sweep.record)
    retry(str(sweep.folder.path), failed=True)
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("state", ["PENDING Resources", "RUNNING None"])
def test_trials_into_whose_folders_nothing_came_are_read_once(
    sweep: Sweep, slurm_says: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(sweeps.trial, "TICK_NS", 0)
    slurm_says(state)
    told = list[tuple[int, int]]()
    with audited("open") as events:
        readings = reconcile(sweep.read(), tell=lambda done, total: told.append((done, total)))
    assert [each.outcome for each in readings] == [Outcome(state.split()[0])] * 2
    assert told == [(1, 2), (2, 2)]
    assert events.count("open submission.json") == events.count("open measurement.json") == 2


@pytest.mark.parametrize("state", ["PENDING Resources", "RUNNING None", "COMPLETED"])
def test_a_measurement_that_comes_while_slurm_is_asked_is_taken(
    sweep: Sweep, tools: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: str
) -> None:
    monkeypatch.setattr(sweeps.trial, "TICK_NS", 0)
    draft = SweepFolder(tmp_path / "draft")
    finish(draft, sweep.record.trials[0], performance(100.0))
    measurement = draft.trial(sweep.record.trials[0].trial_id).measurement
    line = f"echo '12_0|{state}|2026-11-22T05:00:00||{NAME}|'"
    tools(scontrol=CLUSTER, squeue=f"mv '{measurement}' '{first_folder(sweep).path}/'; {line}", sacct="true")
    assert reconcile(sweep.read())[0].outcome is Outcome.COMPLETED
