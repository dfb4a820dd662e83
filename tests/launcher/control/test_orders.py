"""Orders of a person."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial

import pytest
import typer

from cli.commands import control as commands
from cli.commands.control import advance
from cli.commands.control import retry as retry_trials
from conf.compose.settings import UNLIMITED_BUDGET
from conf.errors import UsageError
from conf.types.schema import Value
from launcher.control.orders import SweepCommand, SweepOrders, pause, remeasure_finished, resume, retry
from launcher.control.rules import Budget, Rules
from launcher.slurm import controller, job_status
from launcher.slurm.job_status import LiveJob
from launcher.slurm.query import SlurmJobState
from launcher.slurm.workplace import SlurmQueue
from launcher.sweep import _give_orders
from sweeps.folder.journal import Asked, Begun, Cancelled, Entry, Finished, History, Journal, Paused
from sweeps.folder.submission import Submission, write_submission
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.launcher.test_run_here import seeds
from tests.messages import refused
from tests.results.conftest import finish, performance
from train_core.trial.measurement import Outcome

MANY = 4_000


@pytest.fixture
def sweep(folder: SweepFolder, record_of: RecordOf) -> Sweep:
    """Two layouts, of which the second has two micro-batches."""
    two: dict[str, Value] = {"parallel.world_size": 2, "parallel.tensor_parallel_size": 2}
    return Sweep(folder, record_of([{}, two, two | {"batch.micro_batch_size": 2}]))


def test_a_paused_sweep_stays_paused_until_it_is_resumed(sweep: Sweep) -> None:
    assert (pause(sweep), pause(sweep)) == (True, False)
    assert History.kept_in(sweep.folder).is_paused
    assert (resume(sweep), resume(sweep)) == (True, False)
    assert not History.kept_in(sweep.folder).is_paused


@pytest.mark.slow
def test_thousands_of_trials_that_were_asked_for_are_read_once_and_in_proportion(sweep: Sweep) -> None:
    trial = sweep.record.trials[1]
    asked = [Asked(trial=trial.model_copy(update={"trial_id": f"{trial.trial_id}-{n}"})) for n in range(MANY)]
    journal, spent = Journal(sweep.folder.journal), []
    for entries in (asked[: MANY // 10], asked[MANY // 10 :]):
        journal.append(*entries)
        started = time.process_time()
        History.of(journal.read_new())
        spent.append(time.process_time() - started)
    assert spent[1] < 40 * spent[0], "nine times as many take nine times as long, and not 81 times"
    history = History.kept_in(sweep.folder)
    assert len(history.complete_record(sweep.record).trials) == len(sweep.record.trials) + MANY
    assert journal.read_new() == []


def test_only_the_points_that_the_command_asks_for_are_measured_again(folder: SweepFolder, record_of: RecordOf) -> None:
    """As with a lower `sweep.max_trials` than that of the command that measured them, which a dry run held to."""
    record = record_of(seeds(2))
    first, beyond = record.trials[0], record.trials[1].model_copy(update={"selected": False})
    folder.write_record(record.model_copy(update={"trials": (first, beyond)}))
    for each in (first, beyond):
        finish(folder, each, performance(100.0))
    rules = Rules(budget=Budget(UNLIMITED_BUDGET, None, 60.0))
    for number in (2, 3):
        sweep = Sweep.stored_in(folder)
        _give_orders(sweep, SweepCommand(sweep, rules, SweepOrders(remeasure=True)))
        trials = Sweep.stored_in(folder).record.trials
        assert [each.repeat for each in trials if each.trial_id.startswith(f"{first.trial_id}-r")] == [
            *range(1, number)
        ]
        assert len(trials) == number + 1
        finish(folder, trials[-1], performance(90.0))


def test_a_point_that_is_measured_again_keeps_what_it_measured_before(folder: SweepFolder, record_of: RecordOf) -> None:
    record = record_of(seeds(2))
    folder.write_record(record)
    first, other = record.trials
    finish(folder, first, performance(100.0))
    assert remeasure_finished(Sweep.stored_in(folder), lambda trial: trial.trial_id == other.trial_id) == []
    assert remeasure_finished(Sweep.stored_in(folder), lambda trial: True) == [f"{first.trial_id}-r2"]
    # Who interrupts the command and gives it again does not order another run.
    assert remeasure_finished(Sweep.stored_in(folder), lambda trial: True) == []

    again = Sweep.stored_in(folder).read()[-1]
    assert (again.trial.repeat, again.trial.is_baseline, again.outcome) == (1, first.is_baseline, Outcome.PENDING)
    assert again.experiment == first.experiment
    finish(folder, again.trial, performance(90.0))
    assert remeasure_finished(Sweep.stored_in(folder), lambda trial: True) == [f"{first.trial_id}-r3"]
    assert folder.trial(first.trial_id).read_measurement() is not None


def test_what_was_measured_is_not_retried_and_the_remedy_is_said(folder: SweepFolder, record_of: RecordOf) -> None:
    record = record_of(seeds(1))
    folder.write_record(record)
    finish(folder, record.trials[0], performance(100.0))
    sweep = Sweep.stored_in(folder)
    with refused(UsageError, "--remeasure"):
        retry(sweep, sweep.read())
    with pytest.raises(AssertionError, match="is measured already"):
        sweep.prepare(record.trials[0])


def test_a_controller_that_another_command_has_submitted_meanwhile_is_taken(
    sweep: Sweep, slurm_submission: Callable[..., Submission], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_submission(sweep.folder.controller, slurm_submission("4", job_name="ours"))
    begun = Begun(overrides=("sweep=smoke",), on_slurm=True, config_dirs=())
    Journal(sweep.folder.journal).append(begun)
    other = LiveJob(slurm_submission("5", job_name="ours"), SlurmJobState("PENDING"))
    answers = iter([None, None, other])
    monkeypatch.setattr(job_status, "live_job", lambda folder: next(answers))
    assert controller.resume_controller(sweep) == "5"


@pytest.mark.parametrize(
    ("entry", "code"), [(Paused(), 75), (Cancelled(trial_id=None), None)], ids=["it is paused", "it has ended"]
)
def test_a_step_of_a_sweep_that_is_only_paused_asks_to_be_taken_again(
    sweep: Sweep, entry: Entry, code: int | None
) -> None:
    sweep.folder.write_record(sweep.record)
    Journal(sweep.folder.journal).append(Begun(overrides=("sweep=smoke",), on_slurm=False), entry)
    with pytest.raises(typer.Exit) if code else nullcontext() as ended:
        advance(str(sweep.folder.path))
    assert (ended.value.exit_code if ended else None) == code


@pytest.mark.parametrize("command", [advance, partial(retry_trials, trial=["tp1"])], ids=["advance", "retry"])
def test_what_is_given_to_a_command_that_submits_counts_for_what_it_submits(
    sweep: Sweep, command: Callable[[str, list[str]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep.folder.write_record(sweep.record)
    Journal(sweep.folder.journal).append(Begun(overrides=("sweep=smoke", "cluster=local"), on_slurm=True))
    limits: list[int] = []

    def note(queue: SlurmQueue, *trials: object) -> list[str]:
        limits.append(queue.slurm.time_limit_minutes)
        return []

    monkeypatch.setattr(SlurmQueue, "start", note)
    with suppress(typer.Exit):  # of `advance`: the sweep goes on
        command(str(sweep.folder.path), ["cluster=local", "slurm.time_limit_minutes=7"])
    assert limits == [7]


@pytest.mark.parametrize("command", [commands.pause, commands.resume])
@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "ended"])
@pytest.mark.parametrize("was_paused", [True, False], ids=["and paused", "not paused"])
def test_a_sweep_of_which_nothing_will_be_started_is_neither_paused_nor_goes_on(
    folder: SweepFolder,
    record_of: RecordOf,
    command: Callable[[str], None],
    is_cancelled: bool,
    was_paused: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = record_of(seeds(1))
    folder.write_record(record)
    if not is_cancelled:
        finish(folder, record.trials[0], performance(100.0))
    end = Cancelled(trial_id=None) if is_cancelled else Finished(because="every listed point was tried")
    paused = [Paused()] if was_paused else []
    Journal(folder.journal).append(Begun(overrides=("sweep=smoke", "training.seed=1"), on_slurm=False), *paused, end)
    # Else the next command would be refused because it is paused, and resume because it has ended.
    is_resumed = was_paused and command is commands.resume
    with nullcontext() if is_resumed else pytest.raises(UsageError) as refusal:
        command(str(folder.path))
    said = capsys.readouterr().out if refusal is None else str(refusal.value)
    assert ("is cancelled" if is_cancelled else "has ended") in said
    assert "trisweep sweep test training.seed=1" in said
    assert History.kept_in(folder).is_paused is (was_paused and not is_resumed)


def test_a_sweep_that_goes_on_is_paused_and_resumed_with_its_own_command(
    sweep: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep.folder.write_record(sweep.record)
    given = ("sweep=smoke", "search=random", "budget.device_hours=1")
    Journal(sweep.folder.journal).append(Begun(overrides=given, on_slurm=False))
    commands.pause(str(sweep.folder.path))
    assert History.kept_in(sweep.folder).is_paused
    commands.resume(str(sweep.folder.path))
    assert not History.kept_in(sweep.folder).is_paused
    said = capsys.readouterr().out
    assert "\n  trisweep sweep test search=random budget.device_hours=1 " in said
    assert "\n  trisweep advance test " in said
