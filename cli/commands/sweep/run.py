"""The work of `trisweep sweep`: plan, measure on this machine, through Slurm or in an allocation of it, and report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import typer

from cli.arguments import warn_of_doubts
from cli.commands.plan.answer import print_plan, print_question, print_space
from cli.commands.sweep.on_slurm import carry_out, show_allocation, show_jobs, sweep_in_allocation
from cli.commands.sweep.sweep_run import (
    SweepRun,
    costs_table,
    finish,
    num_attempts,
    num_too_long,
    print_left_out,
    print_part,
    seconds_here,
    under_way,
)
from cli.output.console import complaints, console, print_json
from cli.output.next_command import next_command
from cli.output.progress import has_failed, progress_on, share_ended
from cli.output.state_table import duration
from cli.started_sweep import print_state
from conf.compose.load import Composition
from conf.errors import EXIT_INTERRUPTED, ConfigError, UsageError
from conf.overrides import Overrides
from conf.units import count_of
from launcher.command_trainer.program_check import check_record, require_programs, starts_without_python, untold_keys
from launcher.control.composed_rules import budget_of, rounds_of, rules_for
from launcher.control.orders import SweepOrders
from launcher.folder_lock import require_writable
from launcher.local.machine import this_machine
from launcher.sweep import dry_run_here, prepare_tokens, run_here
from launcher.where import SweepPlace, choose_place
from results.mlflow.follow import followed_in_mlflow
from results.mlflow.trackers import require_trackers
from sweeps.folder.journal import History
from sweeps.later_command import Restriction, restriction_of
from sweeps.points.plan import plan_sweep
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, SweepRecord
from train_core.process.git_sha import git_sha
from train_core.trial.measurement import Outcome


def run_sweep(
    overrides: Overrides, *, dry_run: bool, here: bool, retry_failed: bool, remeasure: bool, as_json: bool
) -> None:
    """Plan the sweep, and show what would run or carry it out."""
    place = choose_place(overrides, here=here, dry_run=dry_run)
    warn_of_doubts(place.composition)
    _require_measurable(place)
    require_trackers(place.settings.tracking)
    sha = git_sha()
    restriction = restriction_of(place.composition, proxy=place.proxy, git_sha=sha)
    if restriction is not None:
        record = restriction.complete_record()
    else:
        record = plan_sweep(place.composition, proxy=place.proxy, git_sha=sha)
    _warn_of_what_is_not_told(record)
    require_programs(record, on_slurm=place.on_slurm)
    texts = place.composition.overrides.without({"tracking"}).texts
    orders = SweepOrders(texts, place.composition.tree, retry_failed=retry_failed, remeasure=remeasure)
    # All that may refuse comes before anything is written, so that a refused command leaves no folder behind.
    if History.kept_in(place.folder).is_paused:
        again = next_command("resume", Sweep(place.folder, record))
        raise UsageError(f"Sweep {record.name} is paused", f"Give `{again}` first.")
    if dry_run:
        require_writable(place.folder.path)
        would_run = _show_what_would_run(place, record, restriction, orders)
        if as_json:
            print_json("sweep", {"sweep": record.name, "folder": str(place.folder.path), "would_run": would_run})
        return
    _require_installed()
    rules = rules_for(place.composition, record, on_slurm=place.on_slurm)
    prepare_tokens(place.folder, record)
    record = check_record(record, complaints.print)
    planned = Sweep(place.folder, record)
    print_part(planned, restriction)
    run = SweepRun(planned, rules, orders, place=place, restriction=restriction)
    with _state_at_the_end(place.folder, as_json=as_json):
        if _is_in_allocation(place):
            sweep_in_allocation(run)
        else:
            carry_out(run) if place.on_slurm else _run_here(run)


def _require_installed() -> None:
    """Raises ModuleNotFoundError where this Python lacks what starts jobs, as one that is for planning alone."""
    for name in ("submitit", "mlflow"):
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _require_measurable(place: SweepPlace) -> None:
    """Raises ConfigError where nothing of the sweep can be measured without a cluster, and none was chosen."""
    sweep = place.settings.sweep
    if place.on_slurm or sweep is None or sweep.replay is None or sweep.proxy is not None:
        return
    remedy = (
        f"Choose the cluster on which its points become jobs with cluster=NAME; without one, a checkout replays it on"
        f" paper with `make sweep-{sweep.name}`."
    )
    raise ConfigError("sweep.proxy", None, "the sweep has no proxy that this machine could measure", remedy)


def _warn_of_what_is_not_told(record: SweepRecord) -> None:
    if starts_without_python(record):
        complaints.print("trainer.python starts nothing: write {python} in trainer.command where it names a Python.")
    if keys := untold_keys(record):
        complaints.print(
            f"Some points run the same program in the same way, as it is not told {' and '.join(keys)}: put"
            f" {' and '.join(f'{{{key}}}' for key in keys)} into trainer.command, trainer.flags, trainer.files or"
            " trainer.environment."
        )


def _is_in_allocation(place: SweepPlace) -> bool:
    return place.on_slurm and place.settings.launcher.kind == "allocation"


@contextmanager
def _state_at_the_end(folder: SweepFolder, *, as_json: bool) -> Iterator[None]:
    """Print how the sweep stands when the command ends, whatever its exit code; after an error, nothing."""
    try:
        yield
    except typer.Exit:  # not `finally`: an error has its own message, and no document
        if as_json:
            print_state("sweep", folder, would_run=None)
        raise
    if as_json:
        print_state("sweep", folder, would_run=None)


def _show_what_would_run(
    place: SweepPlace, record: SweepRecord, restriction: Restriction | None, orders: SweepOrders
) -> list[str]:
    """Print the points, and what would become of them; return the ids of the trials that would run."""
    part = restriction.record if restriction else record
    # All points that are to be measured, but for those that were in the folder already.
    chosen = [each for each in Sweep(place.folder, part).read() if each.trial.selected]
    if _is_in_allocation(place):
        show_allocation(place, part)
        return [each.name for each in chosen if orders.remeasure or each.outcome is not Outcome.COMPLETED]
    print_plan(part, place.composition)
    print_space(place.composition, part)
    _print_costs(place, part)
    if num_measured := sum(each.outcome is Outcome.COMPLETED for each in chosen) * (not orders.remeasure):
        console.print(f"{count_of(num_measured, 'trial', 'is', 'are')} measured already; --remeasure does so again.")
    rules = rules_for(place.composition, record, on_slurm=place.on_slurm)
    run = SweepRun(Sweep(place.folder, record), rules, orders, place=place, restriction=restriction)
    return show_jobs(run) if place.on_slurm else _show_trials_here(run)


def _show_trials_here(run: SweepRun) -> list[str]:
    print_left_out(run.restriction.record if run.restriction else run.sweep.record)
    step, refused = dry_run_here(run)
    wanted = {*step.started, *step.waiting} - set(refused)
    known = [each.name for each in step.readings if each.name in wanted]
    would_run = [*known, *sorted(wanted - set(known))]  # what a search has just proposed comes last
    console.print(f"{count_of(len(would_run), 'trial')} would run on this machine{':' if would_run else '.'}")
    for name in would_run:
        console.print(f"  {name}")
    for name, why in refused.items():
        console.print(f"{name} would not: {why}.")
    return would_run


def _print_costs(place: SweepPlace, record: SweepRecord) -> None:
    """Print the costs of the points, of which a search that chooses one after another knows only the first."""
    chosen = [trial for trial in record.trials if trial.selected]
    budget = budget_of(place.settings, record, on_slurm=place.on_slurm)
    console.print(costs_table(chosen, budget, is_predicted=record.shows_rates))
    if record.shows_rates and (number := num_too_long(chosen, budget)):
        limit = "slurm.time_limit_minutes" if place.on_slurm else "sweep.proxy.time_limit_minutes"
        console.print(
            f"Predicted to take longer than the time limit: {count_of(number, 'trial')}. Raise {limit}, or measure"
            " fewer steps with training.num_steps."
        )
    if place.settings.search.asks_later:
        further = count_of(record.spec.max_trials - len(chosen), "further point")
        console.print(f"The search chooses up to {further}; each counts at its time limit until it ends.")


def _run_here(run: SweepRun) -> None:
    planned, place = run.sweep, run.place
    if place.proxy:
        _print_full_size_summary(planned.record, place.composition)
    _print_expected_time(run)
    if place.composition.overrides.stated_value("slurm.time_limit_minutes") is not None:
        complaints.print("slurm.time_limit_minutes is of jobs: trials of this machine end with budget.deadline_hours.")
    before = num_attempts(planned)
    progress = progress_on(console, under_way(run))
    try:
        with followed_in_mlflow(planned.folder.path, place.settings.tracking):
            run_here(run, progress)
    except KeyboardInterrupt:
        so_far = share_ended(Sweep.stored_in(planned.folder).read(), under_way(run))
        console.print(f"Interrupted: {so_far}. The same command continues.")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finish(run, num_before=before)


def _print_expected_time(run: SweepRun) -> None:
    """Print the expected time of the trials to come; nothing where none is known to be left."""
    left = [each for each in run.sweep.read() if each.trial.selected and each.performance is None]
    # What failed stays as it is, unless the command asks for it again.
    trials = [each.trial for each in left if run.orders.retry_failed or not has_failed(each)]
    if not (able := [trial for trial in trials if trial.estimate]) or not run.sweep.record.shows_rates:
        return
    seconds, search = seconds_here(able, this_machine()), run.place.settings.search
    if search.asks_later:
        # The first points stand for those that the search has not chosen yet.
        seconds *= run.sweep.record.spec.max_trials / len(able)
    so_many = "at most about" if search.asks_later else "about"
    console.print(f"Predicted to take {so_many} {duration(seconds)}, repeats not counted; what is left is said below.")


def _print_full_size_summary(record: SweepRecord, composition: Composition) -> None:
    """Print the plan of the full size, in a few lines, before the proxy is measured."""
    print_question(record, composition)
    search = composition.settings.search
    if search.asks_later:
        most = count_of(record.spec.max_trials, "point")
        console.print(f"Measured here: its proxy, at most {most}. search={search.kind} chooses each by those before.")
        return
    fitting = sum(trial.infeasible_reason is None for trial in record.plan)
    impossible = sum(trial.experiment is None for trial in record.plan)
    lacking = len(record.plan) - fitting - impossible
    points = count_of(len(record.plan), "point")
    console.print(f"{points}: {fitting} fit, {lacking} lack memory, {impossible} cannot exist.")
    chosen, rounds = sum(trial.selected for trial in record.trials), rounds_of(search, record)
    often = f", {'each' if rounds.every_point else 'the leaders up to'} {rounds.most} times" if rounds else ""
    console.print(f"Measured here: {count_of(chosen, 'point')} of its proxy{often}.")
