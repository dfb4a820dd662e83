"""One step after another, with jobs that take no time and a search that a test can foresee."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from cli.output.progress import share_ended
from conf.compose.settings import UNLIMITED_BUDGET, BudgetSpec
from conf.errors import UsageError
from conf.types.schema import Value
from launcher.command_trainer.job import run_here as run_program
from launcher.control import loop
from launcher.control.conductor import Conductor
from launcher.control.loop import go_on
from launcher.control.orders import retry, retry_failed_trials
from launcher.control.rules import Budget, Rules, SweepStep
from launcher.folder_lock import holder, lock_folder
from launcher.local.machine import LocalJobFunction, MachineCapacity
from launcher.local.workplace import ThisMachine
from launcher.provenance import snapshot_code
from sweeps.folder.journal import Cancelled, Ended, Entry, History, Journal, Paused, Resumed
from sweeps.points.plan import trial_of
from sweeps.reading import TrialReading
from sweeps.search.searcher import Answer, Proposal, Pruning, Search
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, Trial
from tests.composed import compose_tree
from tests.conftest import RecordOf
from tests.launcher.conftest import Silent
from tests.launcher.control.at_once import AtOnce
from tests.launcher.test_run_here import jobs_of, make_job, num_runs, seeds
from tests.messages import refused
from tests.waiting import wait_for
from train_core.trial.measurement import Outcome

LIMIT_SECONDS = 36.0
POLL_SECONDS = 0.05
NUM_POINTS = 4
NUM_KILLS = 6
TREE = ["sweep=smoke", "training.num_steps=3"]


@dataclass(frozen=True)
class Seeds(Search):
    """Proposes so many seeds, one after another."""

    num_points: int = NUM_POINTS
    pruned: frozenset[int] = frozenset()

    def ask(self, trials: Sequence[TrialReading], count: int) -> Answer:
        known = {each.trial.point.get("training.seed") for each in trials}
        new = [seed for seed in range(self.num_points) if seed not in known]
        proposals = (Proposal({"training.seed": seed}, f"it is seed {seed}") for seed in new[:count])
        return Answer(tuple(proposals), "" if new else "every seed was tried")

    def prune(self, trials: Sequence[TrialReading]) -> list[Pruning]:
        running = [each for each in trials if each.outcome is Outcome.RUNNING]
        return [
            Pruning(each.name, "it is slow") for each in running if each.trial.point["training.seed"] in self.pruned
        ]

    def lessons(self, trials: Sequence[TrialReading]) -> list[str]:
        return []


class Again(Search):
    """Proposes two seeds at once, whoever asked for them before."""

    def ask(self, trials: Sequence[TrialReading], count: int) -> Answer:
        asked = {each.trial.point.get("training.seed") for each in trials if each.trial.selected}
        proposals = [Proposal({"training.seed": seed}, "once more") for seed in (1, 2) if seed not in asked]
        return Answer(tuple(proposals), "" if proposals else "both were tried")


def drafted(proposal: Proposal) -> Trial:
    return trial_of(compose_tree(TREE), proposal.point, proposal.because)


def adaptive(search: Search | None = None, limits: BudgetSpec = UNLIMITED_BUDGET) -> Rules:
    return Rules(
        budget=Budget(limits, None, LIMIT_SECONDS),
        search=search or Seeds(),
        draft=drafted,
        max_concurrent_trials=2,
        max_trials=20,
        max_resubmits=3,
    )


def conductor_of(sweep: Sweep, rules: Rules, job: LocalJobFunction | None = None, num_cores: int = 2) -> Conductor:
    """As the next process would have it, which knows no more than what is on disk."""
    code = sweep.folder.code.absolute()
    here = ThisMachine(
        MachineCapacity(num_cores, 2**40, 0), lambda: snapshot_code(code), LIMIT_SECONDS, job or make_job()
    )
    return Conductor(sweep, here, rules)


def carried_out(sweep: Sweep, rules: Rules, job: LocalJobFunction | None = None) -> Conductor:
    """With jobs that have ended once they are started."""
    conductor = Conductor(sweep, AtOnce(job or make_job()), rules)
    with lock_folder(sweep.folder):
        go_on(conductor, Silent(), POLL_SECONDS)
    return conductor


def carried_out_in_processes(sweep: Sweep, rules: Rules, job: LocalJobFunction) -> Conductor:
    conductor = conductor_of(sweep, rules, job)
    with lock_folder(sweep.folder):
        to_the_end(conductor)
    return conductor


def to_the_end(conductor: Conductor) -> None:
    go_on(conductor, Silent(), POLL_SECONDS)
    assert isinstance(conductor.workplace, ThisMachine)
    conductor.workplace.wait_for_ends()


def entries(sweep: Sweep) -> list[Entry]:
    return Journal(sweep.folder.journal).read_new()


def history(sweep: Sweep) -> History:
    return History.of(entries(sweep))


@pytest.fixture
def sweep(folder: SweepFolder, record_of: RecordOf) -> Sweep:
    """A sweep of one point, to which a search adds others."""
    planned = Sweep(folder, record_of(seeds(1)))
    folder.write_record(planned.record)
    return planned


def test_a_search_gets_slot_after_slot_until_it_has_finished_and_every_reader_sees_its_trials(sweep: Sweep) -> None:
    done = carried_out(sweep, adaptive())
    stored = Sweep.stored_in(sweep.folder)
    assert [trial.point["training.seed"] for trial in stored.record.trials] == [0, 1, 2, 3]
    assert [trial.chosen_because for trial in stored.record.trials] == [None, *(f"it is seed {n}" for n in (1, 2, 3))]
    assert {each.outcome for each in stored.read()} == {Outcome.COMPLETED}
    assert num_runs(stored.folder, stored.record) == [1] * NUM_POINTS
    assert done.history.finished == "every seed was tried"

    before = sweep.folder.journal.stat().st_size
    carried_out(stored, adaptive())
    assert sweep.folder.journal.stat().st_size == before


def test_a_step_that_fails_later_on_is_tried_again_and_the_display_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class FailsOnce:
        is_under_way = True
        answers: ClassVar[list[UsageError | SweepStep]] = [
            UsageError("Slurm does not answer", "Wait."),
            SweepStep(readings=(), finished="over"),
        ]

        def advance(self) -> SweepStep:
            answer = self.answers.pop(0)
            if isinstance(answer, UsageError):
                raise answer
            return answer

    monkeypatch.setattr(loop, "RETRY_SECONDS", 0.0)
    display = Silent()
    step = go_on(FailsOnce(), display, POLL_SECONDS)  # type: ignore[arg-type]
    assert step.finished == "over"
    assert display.lines == ["A step failed, and is tried again: Slurm does not answer. Wait."]


def test_the_first_step_of_whoever_takes_a_sweep_up_is_tried_again_and_that_of_a_command_is_not(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass(frozen=True)
    class SilentOnce(AtOnce):
        refusals: list[UsageError]

        def read_trials(self, sweep: Sweep) -> list[TrialReading]:
            if self.refusals:
                raise self.refusals.pop()
            return super().read_trials(sweep)

    def conductor() -> Conductor:
        return Conductor(sweep, SilentOnce(make_job(), []), adaptive())

    monkeypatch.setattr(loop, "RETRY_SECONDS", 0.0)
    refusal = UsageError("Slurm refused the job: invalid partition", "Correct it.")
    command = conductor()
    command.begin(("sweep=smoke",), on_slurm=True)
    restarted = conductor()
    for fresh in (command, restarted):  # neither the command nor the controller's first run has submitted anything
        fresh.workplace.refusals.append(refusal)  # type: ignore[attr-defined]
        with refused(UsageError):
            go_on(fresh, Silent(), POLL_SECONDS)
    command.advance()
    restarted, display = conductor(), Silent()
    restarted.workplace.refusals.append(refusal)  # type: ignore[attr-defined]
    assert go_on(restarted, display, POLL_SECONDS).finished
    assert len(display.lines) == 1
    again = conductor()
    again.begin(("sweep=smoke", "slurm.partition=wrong"), on_slurm=True)
    again.workplace.refusals.append(refusal)  # type: ignore[attr-defined]
    with refused(UsageError):
        go_on(again, Silent(), POLL_SECONDS)


@pytest.mark.parametrize("begins_again", [False, True])
def test_whoever_works_in_a_folder_that_was_removed_ends_and_leaves_it_to_the_next(
    sweep: Sweep, begins_again: bool
) -> None:
    class RemovesTheFolder(Silent):
        def show(self, readings: Sequence[TrialReading]) -> None:
            shutil.rmtree(sweep.folder.path)
            if begins_again:
                Journal(sweep.folder.journal).append(Paused())

    conductor = Conductor(sweep, AtOnce(make_job()), adaptive())
    with refused(UsageError):
        go_on(conductor, RemovesTheFolder(), POLL_SECONDS)
    assert sweep.folder.path.exists() == begins_again
    assert not history(sweep).courses


def test_a_signal_is_heard_where_trials_end_within_every_step(sweep: Sweep) -> None:
    class SignalsItself(Seeds):
        def ask(self, trials: Sequence[TrialReading], count: int) -> Answer:
            signal.raise_signal(signal.SIGINT)
            return super().ask(trials, count)

    with pytest.raises(KeyboardInterrupt, match=str(int(signal.SIGINT))):
        carried_out(sweep, adaptive(SignalsItself(40)))
    assert len(history(sweep).courses) <= 3


@pytest.mark.slow
def test_no_more_trials_are_out_than_the_search_allows_and_the_machine_holds(sweep: Sweep) -> None:
    conductor = conductor_of(sweep, adaptive(), make_job(seconds=60))
    first = conductor.advance()
    assert (len(first.started), first.num_in_flight, first.num_waiting) == (2, 2, 0)
    assert isinstance(conductor.workplace, ThisMachine)
    folders = [sweep.folder.trial(trial_id) for trial_id in conductor.workplace.running]
    wait_for(lambda: all(folder.is_running_here() for folder in folders))  # until then a reader finds no job in it
    second = conductor.advance()
    assert (second.started, second.num_in_flight, second.finished) == ((), 2, "")
    conductor.workplace.interrupt_all()


def test_max_trials_ends_a_search_that_would_go_on(sweep: Sweep) -> None:
    done = carried_out(sweep, replace(adaptive(), max_trials=2))
    assert len(done.sweep.record.trials) == 2
    assert done.history.finished == "sweep.max_trials = 2 points were taken"


def test_a_point_that_cannot_exist_is_a_row_and_the_search_goes_on(sweep: Sweep) -> None:
    class WithOneImpossible(Seeds):
        def ask(self, trials: Sequence[TrialReading], count: int) -> Answer:
            impossible: dict[str, Value] = {"parallel.world_size": 3, "parallel.tensor_parallel_size": 2}
            if not any(each.outcome is Outcome.INFEASIBLE for each in trials):
                return Answer((Proposal(impossible, "it looked good"),))
            return super().ask(trials, count)

    done = carried_out(sweep, adaptive(WithOneImpossible(2)))
    assert [each.outcome for each in done.sweep.read()] == [Outcome.COMPLETED, Outcome.INFEASIBLE, Outcome.COMPLETED]


def test_a_search_that_proposes_what_was_tried_ends_the_sweep_instead_of_going_round(sweep: Sweep) -> None:
    class Stubborn(Seeds):
        def ask(self, trials: Sequence[TrialReading], count: int) -> Answer:
            return Answer((Proposal({"training.seed": 0}, "again"),))

    assert "only points that were tried" in carried_out(sweep, adaptive(Stubborn())).history.finished


@pytest.mark.slow
def test_a_trial_that_the_search_gives_up_ends_early_is_kept_and_does_not_run_again(sweep: Sweep) -> None:
    rules = adaptive(Seeds(2, frozenset({1})))

    done = carried_out_in_processes(sweep, rules, by_seed())
    _, slow = done.sweep.read()
    assert (slow.outcome, slow.cause) == (Outcome.PRUNED, "it is slow")
    assert jobs_of(sweep.folder) == []
    carried_out_in_processes(Sweep.stored_in(sweep.folder), rules, by_seed())
    assert history(sweep).course_of(slow.name).num_attempts == 1


def test_what_is_paused_ends_what_runs_and_starts_nothing_until_it_is_resumed(sweep: Sweep) -> None:
    journal = Journal(sweep.folder.journal)
    journal.append(Paused())
    conductor = Conductor(sweep, AtOnce(make_job()), adaptive())
    held = conductor.advance()
    assert (held.started, held.held, held.finished) == ((), "it is paused", "")
    journal.append(Resumed())
    assert len(conductor.advance().started) == 2
    go_on(conductor, Silent(), POLL_SECONDS)


def test_a_trial_of_an_earlier_command_that_is_asked_for_again_is_started_once_there_is_room(sweep: Sweep) -> None:
    (first,) = sweep.record.trials
    others = [drafted(Proposal({"training.seed": seed}, "")) for seed in (1, 2)]
    kept = [trial.model_copy(update={"role": "kept", "selected": False}) for trial in others]
    planned = sweep._replace(record=sweep.record.model_copy(update={"trials": (first, *kept)}))
    to_the_end(conductor := conductor_of(planned, adaptive(Again()), num_cores=1))
    assert {each.outcome for each in conductor.sweep.read()} == {Outcome.COMPLETED}


@pytest.mark.thorough  # than what is paused
@pytest.mark.slow
def test_a_cancelled_sweep_ends_its_jobs_and_starts_nothing_until_the_command_is_given_again(sweep: Sweep) -> None:
    conductor = conductor_of(sweep, adaptive(), make_job(seconds=60))
    conductor.advance()
    Journal(sweep.folder.journal).append(Cancelled(trial_id=None))
    assert conductor.advance().finished == "it was cancelled"
    assert jobs_of(sweep.folder) == []
    stored = Sweep.stored_in(sweep.folder)
    assert {each.outcome for each in stored.read()} == {Outcome.CANCELLED}
    assert conductor_of(stored, adaptive()).advance().started == ()

    again = conductor_of(stored, adaptive())
    again.begin([], on_slurm=False)
    to_the_end(again)
    assert {each.outcome for each in again.sweep.read()} == {Outcome.COMPLETED}


def test_the_last_that_is_shown_of_a_cancelled_sweep_are_trials_that_wait_for_nobody(
    folder: SweepFolder, record_of: RecordOf
) -> None:
    planned = Sweep(folder, record_of(seeds(3)))
    folder.write_record(planned.record)
    conductor = Conductor(planned, AtOnce(make_job()), replace(adaptive(Seeds(3)), max_concurrent_trials=1))
    conductor.advance()
    Journal(folder.journal).append(Cancelled(trial_id=None))
    ends = [each.outcome for each in conductor.advance().readings]
    assert ends == [Outcome.COMPLETED, Outcome.CANCELLED, Outcome.CANCELLED]


def test_trials_that_wait_to_be_tried_again_have_not_ended_while_they_do(
    folder: SweepFolder, record_of: RecordOf
) -> None:
    planned = Sweep(folder, record_of(seeds(3)))
    folder.write_record(planned.record)
    rules = replace(adaptive(Seeds(3)), max_concurrent_trials=1)
    carried_out(planned, rules, make_job("raise"))
    assert len(retry_failed_trials(planned)) == 3
    conductor = Conductor(planned, AtOnce(make_job()), rules)
    shares = [share_ended(conductor.advance().readings) for _ in range(4)]
    assert shares == [f"{ended} of 3 trials ended" for ended in (1, 2, 3, 3)]


def test_whoever_is_told_of_a_step_hears_of_failures_that_are_tried_again_in_it(
    folder: SweepFolder, record_of: RecordOf
) -> None:
    planned, told = Sweep(folder, record_of(seeds(3))), list[TrialReading]()
    folder.write_record(planned.record)
    carried_out(planned, adaptive(Seeds(3)), make_job("raise"))
    retry_failed_trials(planned)
    rules = replace(adaptive(Seeds(3)), tell=lambda _, step: told.extend(step.readings))
    step = Conductor(planned, AtOnce(make_job()), rules).advance()
    assert [each.outcome for each in told] == [Outcome.FAILED] * 3
    assert Outcome.COMPLETED in [each.outcome for each in step.readings]


def test_the_sweep_stops_once_so_many_trials_have_failed(sweep: Sweep) -> None:
    done = carried_out(sweep, replace(adaptive(), fail_fast=1, max_concurrent_trials=1), make_job("raise"))
    assert "1 trial failed (controller.fail_fast = 1)" in done.history.finished
    assert len(done.sweep.record.trials) == 1


@pytest.mark.parametrize(("first", "num_run"), [("", 1), ("time 1 s", 3)])
def test_a_program_that_tells_no_times_is_run_once_and_not_once_for_every_trial(
    first: str, num_run: int, folder: SweepFolder, record_of: RecordOf, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    lines = f"for step in range(1, 4): print(f'step {{step}} loss 4', {first!r} if sys.argv[1] == '0' else '')"
    program.write_text(f"import sys\n{lines}")
    command = f"trainer.command=[{sys.executable},{program},'{{training.seed}}']"
    record = record_of(seeds(3), "trainer=command", "trainer.start=once", command, "search.objective=loss")
    folder.write_record(record)
    rules = replace(adaptive(Seeds(3)), max_concurrent_trials=1)
    done = carried_out(Sweep(folder, record), rules, lambda path, devices, limit: run_program(Path(path)))
    ran = [each for each in done.sweep.read() if each.outcome is not Outcome.PENDING]
    assert len(ran) == num_run
    unread = "no line matches trainer.log.patterns.seconds, trainer.log.patterns.milliseconds"
    stopped = f"without the time of a step no trial counts: nothing measurable in its log: {unread}"
    assert (stopped in (done.history.finished or "")) == (num_run == 1)


def test_what_failed_runs_again_when_a_person_wants_it_to_and_only_once(sweep: Sweep) -> None:
    rules = adaptive(Seeds(1))
    done = carried_out(sweep, rules, make_job("raise"))
    assert done.sweep.read()[0].outcome is Outcome.FAILED
    assert retry_failed_trials(sweep) == [sweep.record.trials[0].trial_id]
    again = carried_out(sweep, rules, make_job("raise"))
    assert num_runs(sweep.folder, sweep.record) == [2]
    retry(sweep, again.sweep.read())
    assert carried_out(sweep, rules).sweep.read()[0].outcome is Outcome.COMPLETED
    assert num_runs(sweep.folder, sweep.record) == [3]


@pytest.mark.slow
def test_the_budget_counts_what_is_in_flight_at_its_limit_and_says_what_would_have_been_next(sweep: Sweep) -> None:
    # Each of the trials could take 0.01 device-hours: three fit if those that ended took nothing.
    limits = UNLIMITED_BUDGET.model_copy(update={"device_hours": 0.025})
    rules = replace(adaptive(limits=limits), max_concurrent_trials=8)
    conductor = conductor_of(sweep, rules, make_job(seconds=0.5), num_cores=8)
    first = conductor.advance()
    assert len(first.started) == 2
    assert "budget.device_hours = 0.025 leaves 0.005 device-hours" in first.held
    assert "the next trial could take 0.01. Next would have been tp1-" in first.held
    assert "(it is seed 2)" in first.held
    to_the_end(conductor)
    assert "budget.device_hours" not in conductor.history.finished, "what ended early left room for the others"
    assert len(conductor.sweep.record.trials) == NUM_POINTS


def test_a_budget_ends_no_sweep_whose_next_trial_it_admits_and_only_room_is_wanting(
    folder: SweepFolder, record_of: RecordOf
) -> None:
    """As where the process of a trial that has measured still holds its cores, or Slurm takes no more jobs for now."""

    class Full(AtOnce):
        def start(self, sweep: Sweep, readings: Sequence[TrialReading]) -> list[str]:
            return []

    sweep = Sweep(folder, record_of(seeds(2)))
    folder.write_record(sweep.record)
    # Each of the trials could take 0.01 device-hours.
    rules = adaptive(limits=UNLIMITED_BUDGET.model_copy(update={"device_hours": 0.015}))
    step = Conductor(sweep, Full(make_job()), rules).advance()
    assert (step.finished, step.num_waiting) == ("", 2)
    assert "Next would have been" in step.held


def test_the_budget_is_not_forgotten_between_commands_nor_by_what_is_tried_again(sweep: Sweep) -> None:
    limits = UNLIMITED_BUDGET.model_copy(update={"device_hours": 0.0101})
    rules = adaptive(Seeds(3), limits)
    first = carried_out(sweep, rules, make_job(seconds=0.6))
    assert len(first.sweep.record.trials) == 1
    assert "Next would have been" in first.history.finished
    retry(sweep, first.sweep.read())
    again = carried_out(Sweep.stored_in(sweep.folder), rules)
    assert num_runs(sweep.folder, again.sweep.record) == [1]
    assert 0.5 < again.history.device_seconds < 30


@pytest.mark.slow
def test_a_deadline_that_has_passed_ends_what_runs(sweep: Sweep) -> None:
    limits = UNLIMITED_BUDGET.model_copy(update={"deadline_hours": (LIMIT_SECONDS + 60.0) / 3600})
    conductor = conductor_of(sweep, adaptive(limits=limits), make_job(seconds=60))
    conductor.begin([], on_slurm=False)
    assert len(conductor.advance().started) == 2
    assert conductor.history.begun is not None
    conductor.history.first_begun = conductor.history.begun.time - 3600
    last = conductor.advance()
    assert "have passed" in last.finished
    assert Counter(each.outcome for each in last.readings)[Outcome.CANCELLED] == 2
    assert sum(isinstance(each, Ended) for each in last.news) == 2
    wait_for(lambda: not jobs_of(sweep.folder))  # they are told to end; on a busy machine that takes a moment


def test_torn_and_damaged_lines_of_the_journal_are_passed_over_and_told(sweep: Sweep) -> None:
    done = carried_out(sweep, adaptive(Seeds(2)))
    text = sweep.folder.journal.read_text()
    sweep.folder.journal.write_text(
        text.replace("\n", '\n{"event": "of a later version"}\nnot json\n', 1) + '{"time": 1'
    )
    stored = Sweep.stored_in(sweep.folder)
    assert stored.record == done.sweep.record
    journal = Journal(sweep.folder.journal)
    assert len(journal.read_new()) == len(text.splitlines())
    journal.append(Paused())
    assert isinstance(journal.read_new()[-1], Paused)
    assert journal.damaged == [2, 3, len(text.splitlines()) + 3]


def test_a_second_controller_is_told_who_has_the_sweep(sweep: Sweep) -> None:
    with lock_folder(sweep.folder), refused(UsageError, os.getpid()):
        carried_out(sweep, adaptive())


@pytest.mark.slow
def test_a_controller_that_is_killed_at_any_instant_loses_nothing_and_runs_nothing_twice(sweep: Sweep) -> None:
    """Jobs outlive their controller, and the next one adopts them."""
    instants = random.Random(7)
    for _ in range(NUM_KILLS):
        child = os.fork()
        if child == 0:
            try:
                carried_out_in_processes(Sweep(sweep.folder, sweep.record), adaptive(), make_job(seconds=0.3))
            finally:
                os._exit(0)
        time.sleep(instants.uniform(0.0, 0.6))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        # A job that was just being started holds its copy of the lock until it runs its own program.
        wait_for(lambda: holder(sweep.folder) is None)
    done = carried_out_in_processes(sweep, adaptive(), make_job(seconds=0.3))
    assert {each.outcome for each in done.sweep.read()} == {Outcome.COMPLETED}
    assert len(done.sweep.record.trials) == NUM_POINTS
    ends = [len((each.folder.path / "ended").read_text().splitlines()) for each in done.sweep.read()]
    assert ends == [1] * NUM_POINTS


def by_seed() -> LocalJobFunction:
    """Seed 1 takes long, all others no time."""
    quick, slow = make_job(), make_job(seconds=60.0)

    def job(folder: str, devices: tuple[int, ...], time_limit_seconds: float | None) -> None:
        import json

        seed = json.loads(Path(folder, "trial.json").read_text())["experiment"]["training"]["seed"]
        (slow if seed == 1 else quick)(folder, devices, time_limit_seconds)

    return job
