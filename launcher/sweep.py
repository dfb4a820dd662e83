"""Three ways to carry a sweep out: on this machine, through Slurm, or only on paper as a dry run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from conf.compose.settings import UNLIMITED_BUDGET, ControllerSpec
from conf.errors import UsageError
from conf.overrides import Overrides
from conf.plan.experiment import Experiment
from conf.types.sites import SlurmSpec
from conf.units import SECONDS_PER_MINUTE
from launcher.command_trainer.reread import reread_logs
from launcher.control.conductor import Conductor
from launcher.control.loop import go_on
from launcher.control.orders import SweepCommand, keep_private_overrides, remeasure_finished, retry_failed_trials
from launcher.control.rules import Budget, Rules, SweepStep
from launcher.control.workplace import ProgressDisplay, Workplace
from launcher.folder_lock import lock_folder
from launcher.job_payload import RUN_IN_SLURM, RUN_ON_THIS_MACHINE
from launcher.local.machine import LocalJobFunction, this_machine
from launcher.local.workplace import MachineOnPaper, ThisMachine
from launcher.provenance import keep_configuration, keep_provenance, snapshot_code
from launcher.refused import unchanged_if_refused
from launcher.slurm.controller import submit_controller
from launcher.slurm.executor import SlurmJob
from launcher.slurm.job_records import charged_times
from launcher.slurm.job_status import carrying_job
from launcher.slurm.pbs import require_scheduler
from launcher.slurm.workplace import JobRequest, QueueOnPaper, SlurmQueue, SubmittedArray, device_hours
from sweeps.folder.journal import History, Journal
from sweeps.later_command import union
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, SweepRecord

SHOW_SECONDS = 1.0
"""On this machine the table is drawn no more often, because the cores belong to what is being measured."""

UNLIMITED = 1_000_000
"""The limit of resubmissions guards against a cluster's bad nodes. This one machine needs no such guard."""


@dataclass(frozen=True)
class SubmissionSummary:
    """What `submit` did, for the user; device-hours are those of submitted trials that run into their time limit.

    Attributes:
        kept: trials of the sweep that have ended, and are not to run again.
    """

    arrays: tuple[SubmittedArray, ...]
    num_submitted: int
    kept: tuple[TrialReading, ...]
    num_live: int
    device_hours: float
    step: SweepStep


def run_here(command: SweepCommand, progress: ProgressDisplay, job: LocalJobFunction = RUN_ON_THIS_MACHINE) -> None:
    """Run on this machine what has no result yet, and return when all has ended. Running it again continues.

    Args:
        job: what runs one trial, given its folder, its devices and the time limit.

    Raises:
        UsageError: another process works on the folder.
        ConfigError: the folder cannot be written.
        KeyboardInterrupt: a signal came; the jobs have been ended, and the same call continues.
    """
    with lock_folder(command.sweep.folder), unchanged_if_refused(command.sweep.folder):
        code = command.sweep.folder.code.absolute()
        here = ThisMachine(
            this_machine(), lambda: snapshot_code(code), command.rules.budget.limit_seconds, job, charged_times
        )
        conductor = begin_sweep(_unlimited(command), here, on_slurm=False)
        with progress:
            try:
                go_on(conductor, progress, SHOW_SECONDS)
                here.wait_for_ends()
            except KeyboardInterrupt:
                here.interrupt_all()
                progress.show(here.read_trials(conductor.sweep))
                raise


def carry_out_on_slurm(
    command: SweepCommand, slurm: SlurmSpec, *, progress: ProgressDisplay, poll_seconds: float
) -> None:
    """Go on with the sweep through Slurm until it has ended.

    Raises:
        KeyboardInterrupt: a signal came. The jobs go on, and so does the sweep with the same call.
    """
    require_scheduler(slurm)
    with lock_folder(command.sweep.folder), unchanged_if_refused(command.sweep.folder):
        # A sweep that an allocation carries out is refused; a queued controller goes on with what this command leaves.
        carrying_job(command.sweep.folder, command.sweep.folder.controller)
        conductor = begin_sweep(command, SlurmQueue(slurm), on_slurm=True)
        with progress:
            go_on(conductor, progress, poll_seconds)


def hand_over(command: SweepCommand, slurm: SlurmSpec, controller: ControllerSpec) -> str:
    """Have a small Slurm job go on with the sweep, and return its id. One that is queued or running is kept.

    Raises:
        UsageError: there is no sbatch, Slurm refuses, another process works on the folder, an allocation carries
            the sweep out, or a job goes on with another sweep than the command's.
        ConfigError: the folder cannot be written, or the controller's time limit is too short.
    """
    require_scheduler(slurm)
    folder = command.sweep.folder
    if (live := carrying_job(folder, folder.controller)) is not None:
        order_of_live_job(command, live)
        return live
    with lock_folder(folder), unchanged_if_refused(folder):
        if (live := carrying_job(folder, folder.controller)) is not None:  # another command was faster
            order_of_live_job(command, live)
            return live
        conductor = begin_sweep(command, SlurmQueue(slurm), on_slurm=True)
        return submit_controller(conductor.sweep, slurm, controller)


def submit(
    command: SweepCommand,
    slurm: SlurmSpec,
    *,
    job: SlurmJob = RUN_IN_SLURM,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> SubmissionSummary:
    """Submit what has neither a result nor a live job, and return at once.

    Raises:
        UsageError: there is no sbatch, Slurm refuses, or another process, or an allocation, carries the sweep out.
        ConfigError: the folder cannot be written, or an option of `slurm.extra_sbatch` is not free.
    """
    require_scheduler(slurm)
    with lock_folder(command.sweep.folder), unchanged_if_refused(command.sweep.folder):
        # A sweep that an allocation carries out is refused; a queued controller goes on with what this command leaves.
        carrying_job(command.sweep.folder, command.sweep.folder.controller)
        queue = SlurmQueue(slurm, job, tell)
        conductor = begin_sweep(command, queue, on_slurm=True)
        step = conductor.advance()
    if queue.refusal is not None:
        raise queue.refusal
    started = [trial for trial in conductor.sweep.runnable if trial.trial_id in step.started]
    hours = sum(device_hours(trial.experiment, slurm) for trial in started if trial.experiment)
    num_live = step.num_in_flight - len(step.started)
    runs, chosen = {*step.started, *step.waiting}, {trial.trial_id for trial in conductor.sweep.runnable}
    ended = (each for each in step.readings if each.outcome is not None and each.outcome.is_final)
    kept = tuple(each for each in ended if each.name in chosen - runs)
    return SubmissionSummary(tuple(queue.arrays), len(started), kept, num_live, hours, step)


def dry_run(command: SweepCommand, slurm: SlurmSpec) -> tuple[SweepStep, list[JobRequest]]:
    """Take the sweep's first step through Slurm on paper, and return it with what it would submit. Nobody is told.

    The journal is a copy. Ends that Slurm tells of are written into their trials' folders, as `status` writes them.

    Raises:
        ConfigError: a setting is wrong.
        UsageError: what earlier commands left cannot be read.
    """
    queue = QueueOnPaper(slurm)
    return _step_on_paper(command, queue, on_slurm=True), queue.requests


def dry_run_here(command: SweepCommand) -> tuple[SweepStep, dict[str, str]]:
    """The same on this machine, with why it cannot run some trials, by their ids.

    Raises:
        UsageError: what earlier commands left cannot be read.
    """
    machine = MachineOnPaper(this_machine(), charged_times)
    return _step_on_paper(_unlimited(command), machine, on_slurm=False), machine.refused


def _step_on_paper(command: SweepCommand, workplace: Workplace, *, on_slurm: bool) -> SweepStep:
    with tempfile.TemporaryDirectory() as temporary:
        # The step writes into its journal and reads it again: here a copy, in which earlier commands stand too.
        folder = SweepFolder(command.sweep.folder.path)
        folder.journal = Path(temporary, folder.journal.name)
        Journal(folder.journal).append(*Journal(command.sweep.folder.journal).read_new())
        planned = Sweep(folder, union_for(command))
        quiet = replace(command.rules, tell=lambda sweep, step: None)
        return _begin(replace(command, sweep=planned, rules=quiet), workplace, on_slurm=on_slurm).advance()


def _unlimited(command: SweepCommand) -> SweepCommand:
    return replace(command, rules=replace(command.rules, max_resubmits=UNLIMITED))


def slurm_rules(slurm: SlurmSpec) -> Rules:
    """Every listed point once, whatever it costs."""
    budget = Budget(UNLIMITED_BUDGET, slurm, slurm.time_limit_minutes * SECONDS_PER_MINUTE)
    return Rules(budget=budget, max_resubmits=slurm.max_resubmits)


def begin_sweep(command: SweepCommand, workplace: Workplace, *, on_slurm: bool) -> Conductor:
    """Write down what a command asks for, beside what earlier ones did. Whoever calls holds the folder's lock."""
    sweep = command.sweep._replace(record=union_for(command))
    # Before the journal says that the sweep was begun, for whoever reads that goes on with the record.
    sweep.folder.write_record(sweep.record)
    keep_provenance(sweep.folder, command.orders.overrides)
    keep_configuration(sweep.folder, command.orders.configuration)
    keep_private_overrides(sweep.folder, command.orders.overrides)
    reread_logs(sweep)
    return _begin(replace(command, sweep=sweep), workplace, on_slurm=on_slurm)


def _begin(command: SweepCommand, workplace: Workplace, *, on_slurm: bool) -> Conductor:
    """Write the command and its orders into the journal of a sweep whose record is that of all commands."""
    conductor = Conductor(command.sweep, workplace, command.rules)
    conductor.begin(command.orders.overrides, on_slurm=on_slurm)
    _give_orders(conductor.sweep, command)
    return conductor


def order_of_live_job(command: SweepCommand, job_id: str) -> None:
    """Give the orders of a command to the job that carries the sweep out: it reads them in the journal.

    Raises:
        UsageError: the command asks for other points than the job knows, or for another budget.
    """
    folder = command.sweep.folder
    stored, begun = Sweep.stored_in(folder), History.kept_in(folder).begun
    has_same_budget = begun is None or _budget_in(begun.overrides) == _budget_in(command.orders.overrides)
    if stored.record != union_for(command) or not has_same_budget:
        problem = f"Job {job_id} carries the sweep out as it was planned before"
        raise UsageError(problem, "Let it end, or end it with `trisweep cancel`, and give the command again.")
    _give_orders(stored, command)


def _give_orders(sweep: Sweep, command: SweepCommand) -> None:
    if command.orders.remeasure:
        # Without the points beyond `sweep.max_trials`, though an earlier command may have measured them.
        marks = {
            each.mark for each in sweep.record.trials if each.selected and each.role == "asked" and not each.repeat
        }
        remeasure_finished(sweep, lambda trial: trial.mark in marks and command.rules.wants(trial))
    if command.orders.retry_failed:
        retry_failed_trials(sweep)


def _budget_in(overrides: Sequence[str]) -> tuple[str, ...]:
    return Overrides.parse(overrides).of({"budget"}).texts


def union_for(command: SweepCommand) -> SweepRecord:
    """The record of a command with all that earlier ones asked for."""
    return union(command.sweep, command.rules.draft, asks_later=command.rules.max_trials is not None)


def prepare_tokens(folder: SweepFolder, record: SweepRecord) -> None:
    """Prepare the tokens of all chosen trials, so that bad data stops the sweep at once.

    Raises:
        ConfigError: the data is missing, empty or not what the configuration says it is.
    """
    from train_core.data.tokens import prepare

    chosen = [trial.experiment for trial in record.trials if trial.selected and trial.experiment]
    chosen = [each for each in chosen if each.trainer.is_own]  # other programs have data of their own
    # Trials mostly differ in layout or seed alone, and then share their tokens.
    for experiment in {_token_inputs(each): each for each in chosen}.values():
        configured = experiment.data.cache_dir
        prepare(experiment, Path(configured).expanduser() if configured else folder.tokens)


def _token_inputs(experiment: Experiment) -> tuple[object, ...]:
    """Return all on which tokens, and complaints about them, depend: equal here, they are equal there."""
    training = experiment.training
    evaluated = training.evaluate_every and training.num_evaluation_batches * experiment.batch.global_batch_size
    return experiment.data.model_dump_json(), experiment.model, evaluated
