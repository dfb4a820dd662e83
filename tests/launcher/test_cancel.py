"""Trials that a person ends one by one; stand-ins answer for Slurm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from cli.commands.control import cancel
from cli.commands.status import status
from cli.output.progress import ends_in_words
from cli.output.status_table import state_lines
from conf.errors import UsageError
from launcher.cancel import cancel_sweep, cancel_trials
from launcher.control.conductor import Conductor
from launcher.control.orders import retry
from launcher.folder_lock import lock_folder
from launcher.slurm.reconcile import reconcile
from launcher.slurm.workplace import SeenFromOutside, SlurmQueue
from launcher.sweep import slurm_rules
from sweeps.folder.journal import Begun, History, Journal
from sweeps.folder.submission import JobShape, Submission, write_submission
from sweeps.reading import CALLED_OFF, CANCELLED_BY_NAME
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.launcher.conftest import SlurmOf, Tools
from tests.launcher.test_run_here import seeds
from tests.messages import refused
from tests.results.conftest import finish, performance
from train_core.trial.measurement import Outcome, Performance

QUEUED, GONE = "12|PENDING Resources|N/A||ours|", "12|CANCELLED by 0|2026-11-22T05:00:00||ours|"


@pytest.fixture
def sweep(folder: SweepFolder, record_of: RecordOf) -> Sweep:
    sweep = Sweep(folder, record_of(seeds(1)))
    folder.write_record(sweep.record)
    return sweep


@pytest.fixture
def slurm(tools: Tools, folder: SweepFolder) -> None:
    """A Slurm whose one job waits until it is cancelled, and which takes no further one."""
    ended = folder.path.parent / "cancelled"
    says = f"test -e {ended} && echo '{GONE}' || echo '{QUEUED}'"
    tools(scontrol="echo 'ClusterName = alps'", squeue=says, sacct="exit 1", scancel=f"touch {ended}", sbatch="exit 1")


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize("is_submitted", [True, False], ids=["in the queue", "never submitted"])
def test_a_trial_that_waits_and_is_cancelled_by_name_says_so_and_stays_cancelled(
    sweep: Sweep, slurm_of: SlurmOf, slurm_submission: Callable[..., Submission], is_submitted: bool
) -> None:
    (trial,) = sweep.record.trials
    if is_submitted:
        write_submission(sweep.prepare(trial), slurm_submission("12", job_name="ours", cluster="alps"))
    assert cancel_trials(sweep, [trial]) == [trial.trial_id]
    (reading,) = reconcile(sweep.read())
    assert (reading.outcome, reading.cause) == (Outcome.CANCELLED, CANCELLED_BY_NAME)
    assert reading.measurement is not None
    assert reading.measurement.ended - reading.measurement.started < 60  # it was submitted long ago
    conductor = Conductor(sweep, SeenFromOutside(slurm_of()), slurm_rules(slurm_of()))
    assert (conductor.advance().waiting, bool(conductor.history.finished)) == ((), True)
    assert not any("run again" in line for line in state_lines(sweep, [reading]))
    retry(sweep, [reading])
    assert "Ordered to run again: seed=0." in state_lines(sweep, [reading])
    assert conductor.advance().waiting == (trial.trial_id,)


@pytest.mark.usefixtures("slurm")
def test_what_slurm_said_before_a_cancellation_is_not_taken_for_how_it_stands(
    sweep: Sweep, slurm_submission: Callable[..., Submission]
) -> None:
    (trial,) = sweep.record.trials
    write_submission(sweep.prepare(trial), slurm_submission("12", job_name="ours", cluster="alps"))
    assert reconcile(sweep.read(), 30.0)[0].outcome is Outcome.PENDING
    assert cancel_sweep(sweep) == 1
    assert reconcile(sweep.read(), 30.0)[0].outcome is Outcome.CANCELLED


def test_a_controller_that_cannot_be_ended_is_named_and_the_trials_jobs_are_ended_all_the_same(
    sweep: Sweep, slurm_submission: Callable[..., Submission], tools: Tools, tmp_path: Path
) -> None:
    (trial,) = sweep.record.trials
    write_submission(sweep.prepare(trial), slurm_submission("12", job_name="ours", cluster="alps"))
    write_submission(sweep.folder.controller, slurm_submission("11", job_name="its-controller", cluster="alps"))
    Journal(sweep.folder.journal).append(Begun(overrides=(), on_slurm=True))
    tools(
        scontrol="echo 'ClusterName = alps'",
        squeue=f"echo '{QUEUED}'",
        sacct="echo '11|RUNNING|Unknown|n1|its-controller|'",
        scancel=f'echo "$@" >> {tmp_path}/ended',
    )
    with refused(UsageError):
        cancel_sweep(sweep)
    assert "12" in (tmp_path / "ended").read_text().split()
    assert History.kept_in(sweep.folder).is_cancelled


@pytest.mark.usefixtures("slurm")
def test_trials_that_wait_for_their_allocation_are_cancelled_with_it_and_run_again_by_the_next_command(
    sweep: Sweep, slurm_of: SlurmOf, slurm_submission: Callable[..., Submission]
) -> None:
    write_submission(sweep.folder.allocation, slurm_submission("12", job_name="ours", cluster="alps"))
    Journal(sweep.folder.journal).append(Begun(overrides=(), on_slurm=True))
    assert cancel_sweep(sweep) == 1
    (reading,) = reconcile(sweep.read())
    assert (reading.outcome, "before 12" in reading.cause) == (Outcome.CANCELLED, True)
    assert cancel_sweep(sweep) == 0
    conductor = Conductor(sweep, SeenFromOutside(slurm_of()), slurm_rules(slurm_of()))
    conductor.begin((), on_slurm=True)
    assert conductor.advance().waiting == (reading.name,)


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize("on_slurm", [True, False], ids=["through Slurm", "on this machine"])
def test_trials_that_were_never_submitted_are_cancelled_with_their_sweep_until_its_command_is_given_again(
    folder: SweepFolder, record_of: RecordOf, capsys: pytest.CaptureFixture[str], on_slurm: bool
) -> None:
    begun, sweep = Begun(overrides=(), on_slurm=on_slurm), Sweep(folder, record_of(seeds(3)))
    folder.write_record(sweep.record)
    finish(folder, sweep.record.trials[0], performance(100.0))
    Journal(folder.journal).append(begun)
    cancel(str(folder.path))
    assert "2 trials cancelled in" in capsys.readouterr().out
    stored = Sweep.stored_in(folder)
    assert [each.outcome for each in stored.read()] == [Outcome.COMPLETED, Outcome.CANCELLED, Outcome.CANCELLED]
    status(str(folder.path))
    said = capsys.readouterr().out
    assert "2 CANCELLED, 1 COMPLETED" in said
    assert f"cause    {CALLED_OFF}" in said
    in_words = "1 trial measured, 2 cancelled (the sweep's command runs them again)"
    assert ends_in_words(stored, stored.read()) == in_words
    cancel(str(folder.path))
    assert "0 trials cancelled in" in capsys.readouterr().out
    Journal(folder.journal).append(begun)
    assert [each.outcome for each in Sweep.stored_in(folder).read()][1:] == [Outcome.PENDING, Outcome.PENDING]


@pytest.mark.usefixtures("slurm")
def test_who_carries_a_sweep_out_writes_down_that_a_trial_was_cancelled_before_it_started(
    sweep: Sweep, slurm_of: SlurmOf
) -> None:
    with lock_folder(sweep.folder):
        cancel_trials(sweep, list(sweep.record.trials))
        assert sweep.read()[0].outcome is Outcome.PENDING, "the process may be about to submit it"
        step = Conductor(sweep, SlurmQueue(slurm_of()), slurm_rules(slurm_of())).advance()
    assert step.finished
    assert [(each.outcome, each.cause) for each in step.readings] == [(Outcome.CANCELLED, CANCELLED_BY_NAME)]


def test_a_trial_that_lost_its_node_and_is_cancelled_by_name_is_not_run_again(
    sweep: Sweep, slurm_of: SlurmOf, capsys: pytest.CaptureFixture[str]
) -> None:
    (trial,) = sweep.record.trials
    finish(sweep.folder, trial, (Outcome.NODE_FAILED, "its node went down"))
    rules = replace(slurm_rules(slurm_of()), max_resubmits=1)
    assert Conductor(sweep, SeenFromOutside(slurm_of()), rules).advance().waiting == (trial.trial_id,)
    cancel(str(sweep.folder.path), trial=[trial.trial_id])
    assert trial.trial_id in capsys.readouterr().out.partition("1 trial cancelled, run again only by")[2]
    conductor = Conductor(sweep, SeenFromOutside(slurm_of()), rules)
    assert (conductor.advance().waiting, bool(conductor.history.finished)) == ((), True)
    retry(sweep, [sweep.read_trial(trial)])
    assert conductor.advance().waiting == (trial.trial_id,)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (performance(100.0), "{name} is measured; nothing to cancel."),
        ((Outcome.FAILED, "it broke"), "{name} is FAILED; nothing to cancel."),
    ],
    ids=["measured", "failed"],
)
def test_a_trial_that_has_ended_is_said_to_have(
    sweep: Sweep, capsys: pytest.CaptureFixture[str], how: Performance | tuple[Outcome, str], words: str
) -> None:
    (trial,) = sweep.record.trials
    finish(sweep.folder, trial, how)
    cancel(str(sweep.folder.path), trial=[trial.trial_id, trial.trial_id])
    assert capsys.readouterr().out == words.format(name=trial.trial_id) + "\n"


@pytest.mark.parametrize("by_name", [False, True], ids=["the sweep", "a trial"])
def test_what_another_user_runs_is_refused_before_anything_is_ended(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, by_name: bool
) -> None:
    (trial,) = sweep.record.trials
    own = psutil.Process()
    monkeypatch.setattr(own, "uids", lambda: SimpleNamespace(real=4321))
    monkeypatch.setattr(own, "username", lambda: "alice")
    monkeypatch.setattr(own, "send_signal", pytest.fail)
    monkeypatch.setattr("launcher.cancel.supervisor_of", lambda job: own)
    monkeypatch.setattr("launcher.cancel.is_running_here", lambda folder, job: True)
    monkeypatch.setattr("os.geteuid", lambda: 1234)
    shape = JobShape(num_nodes=1, tasks_per_node=1, uses_gpus=False)
    facts = {"executor": "local", "job_id": "1", "hostname": "here", "attempt": 1, "submitted": 1.0, "output": ""}
    write_submission(sweep.prepare(trial), Submission.model_validate({**facts, "shape": shape, "error": ""}))
    with refused(UsageError, own.pid):
        cancel(str(sweep.folder.path), trial=[trial.trial_id] if by_name else None)
    assert not sweep.folder.journal.exists()
