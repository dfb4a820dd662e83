"""One sweep that a command carries out: what of it is measured and what is left out, and how the command ends.

Of a dry run also the money and time: what each point should cost and may cost at most, and all of them together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from cli.commands.report import report_on
from cli.output.console import console, print_complaint, print_unwrapped
from cli.output.next_command import next_command, same_command
from cli.output.progress import SweepUnderWay, ends_in_words, has_failed, num_run_again
from cli.output.state_table import duration
from conf.errors import EXIT_FAILED, TrisweepError
from conf.nearest import listed
from conf.overrides import value_text
from conf.types.sites import TrackingSpec
from conf.units import SECONDS_PER_HOUR, count_of
from launcher.command_trainer.performance import present_code
from launcher.control.orders import SweepCommand
from launcher.control.rules import Budget, Rules, predicted_seconds, taken_per_device_hour
from launcher.where import SweepPlace, cluster_elsewhere, slurm_answers
from results.render.table import LayoutCell
from sweeps.folder.journal import History
from sweeps.later_command import Restriction
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep, by_predecessor, chain_of, first_runs, points_of_configuration
from train_core.trial.measurement import LIVE, Outcome

if TYPE_CHECKING:
    from launcher.local.machine import MachineCapacity
    from sweeps.trial import SweepRecord, Trial


MOST_NAMED = 5
LEAST_WIDTH = 5
LEAST = 0.001
START_SECONDS = 3.0
"""Of a trial's processes, until their first step: 2 to 4 s on two cores."""
HEADS_OF_LIMITS = {"device-hours": "device_hours", "dollars": "dollars", "kWh": "energy_kwh"}
HOURS = "time"
HEADS = (*HEADS_OF_LIMITS, HOURS)
MEASURED_AGAIN = "--remeasure measures every point again."


@dataclass(frozen=True, kw_only=True)
class SweepRun(SweepCommand):
    """A sweep as one command carries it out.

    Attributes:
        restriction: the part of the sweep that the command names; None for all of it.
    """

    place: SweepPlace
    restriction: Restriction | None


def under_way(run: SweepRun) -> SweepUnderWay:
    return SweepUnderWay(run.sweep.record.objective, run.place.settings.search.asks_later)


def finish(run: SweepRun, num_before: int | None = None) -> None:
    """Print why the sweep has ended and the report, and name the commands that go on from there.

    Args:
        num_before: attempts before the command, where it says so if it had nothing to do.

    Raises:
        typer.Exit: no point of the sweep has a measurement, or MLflow did not take what was measured.
    """
    stored = Sweep.stored_in(run.sweep.folder)
    readings = stored.read()
    # Not what earlier commands asked for, nor points beside the part that this one names.
    asked = (each for each in readings if each.trial.role == "asked")
    wanted = [each for each in asked if each.trial.stage or run.rules.wants(each.trial)]
    is_cut_short = any(each.outcome in LIVE or each.is_called_off for each in wanted)
    _print_why_it_ended(stored, readings, run.rules, is_cut_short=is_cut_short)
    if num_before is not None and not is_cut_short:
        print_nothing_to_do(stored, _points_with_stages(readings, run.rules), num_before)
    is_taken = report_at_the_end(stored, run.place.settings.tracking, run.restriction)
    end_command(stored, wanted, run.place)
    if not is_taken:
        raise typer.Exit(EXIT_FAILED)


def report_at_the_end(sweep: Sweep, tracking: TrackingSpec, restriction: Restriction | None = None) -> bool:
    """Report on a sweep that was carried out, and say what of that failed; False where MLflow did not take it.

    An error would end the command with an exit code by which nothing was started. A file that cannot be written takes
    nothing from the sweep, whose report a later command writes.
    """
    try:
        report_on(sweep, tracking, restriction)
    except TrisweepError as error:
        from results.report.report import ReportNotWritten

        if not isinstance(error, ReportNotWritten):
            print_complaint(str(error))
            return False
        problem = error.problem
    except OSError as error:
        if error.filename is None:  # what is printed finds no room, or no reader any more
            raise
        problem = f"{error.filename}: {error.strerror}"
    else:
        return True
    part = [f"{key}={value_text(value)}" for key, value in restriction.values.items()] if restriction else []
    remedy = f"What was measured is kept: once that is mended, `{next_command('report', sweep, *part)}` reports on it."
    print_complaint(f"{problem}. {remedy}")
    return True


def _points_with_stages(readings: Sequence[TrialReading], rules: Rules) -> list[TrialReading]:
    """The points of the command, those that an earlier one asked for too, and what followed each of them."""
    points = [each for each in points_of_configuration(readings) if rules.wants(each.trial)]
    later = by_predecessor(readings)
    return [*points, *(stage for point in points for stage in chain_of(point, later).values())]


def _print_why_it_ended(stored: Sweep, readings: Sequence[TrialReading], rules: Rules, *, is_cut_short: bool) -> None:
    """Print why a sweep has ended that was cut short, chose points or measured some again, and what its search learned.

    Args:
        is_cut_short: a limit has ended it before all that the command asked for.
    """
    finished = History.kept_in(stored.folder).finished
    if finished and (is_cut_short or rules.rounds is not None or rules.max_trials is not None):
        console.print(f"The sweep has ended: {finished}.")
        for sentence in rules.search.lessons(first_runs(readings)):
            console.print(f"  {sentence}")


def num_attempts(sweep: Sweep) -> int:
    return sum(course.num_attempts for course in History.kept_in(sweep.folder).courses.values())


def print_nothing_to_do(stored: Sweep, there: Sequence[TrialReading], before: int) -> None:
    """Print that a command started nothing, because there was nothing left to start.

    Args:
        there: the points of the command and their stages, whichever command measured them.
        before: attempts before the command.
    """
    if num_attempts(stored) == before:
        print_nothing_started(ends_in_words(stored, there), there)


def print_nothing_started(how: str, there: Sequence[TrialReading]) -> None:
    """Print that all has ended, and whether the program that was measured has been changed since."""
    points = [(each, each.trial.experiment) for each in there if each.code and not each.trial.stage]
    programs = [(each, experiment) for each, experiment in points if experiment and not experiment.trainer.is_own]
    newest = max(programs, key=lambda program: program[0].end_time or 0.0, default=None)
    changed = ""
    if newest and present_code(newest[1], newest[0].folder.path) not in {"", newest[0].code}:
        changed = f" The program has been changed since {newest[0].title} was measured."
    print_unwrapped(f"Nothing to do: {how}.{changed} {MEASURED_AGAIN}")


def end_command(sweep: Sweep, wanted: Sequence[TrialReading], place: SweepPlace) -> None:
    """Name the commands that say why wanted trials failed, and run them again; exit if nothing was measured.

    Raises typer.Exit where no point of the sweep has a measurement.
    """
    again = num_run_again(wanted)
    # Whoever cancelled a trial by its name knows why it ended.
    if failed := sum(has_failed(each) and each.outcome is not Outcome.CANCELLED for each in wanted):
        console.print(f"{count_of(failed, 'trial')} failed. Why{', and to run what failed again' if again else ''}:")
        print_unwrapped(f"  {next_command('status', sweep)}")
    if again:
        own = place.composition.overrides.without({"tracking"})
        goes_to_slurm = slurm_answers() or cluster_elsewhere(place.composition)
        here = ["--here"] if goes_to_slurm and not place.on_slurm else []
        print_unwrapped(f"  {same_command('sweep', sweep.record.name, own, *here, '--retry-failed')}")
    has_measured = any(each.performance for each in wanted) or any(each.performance for each in sweep.read())
    if not has_measured:
        console.print("Nothing was measured.")
        raise typer.Exit(EXIT_FAILED)


def print_left_out(record: SweepRecord) -> None:
    fitting = [trial for trial in record.trials if trial.infeasible_reason is None]
    if left_out := [trial.trial_id for trial in fitting if not trial.selected]:
        which = "best predicted" if record.shows_rates else "first"
        most = f"sweep.max_trials={record.spec.max_trials} takes the baseline and the {which}"
        measured = f"{len(fitting)} fit, {len(fitting) - len(left_out)} are measured"
        console.print(f"{measured}: {most}. Left out: {listed(left_out, MOST_NAMED)}.")


def print_part(planned: Sweep, restriction: Restriction | None) -> None:
    """Print the part of the sweep that a command with values of its axes takes."""
    if restriction is None:
        return
    part = [trial for trial in planned.runnable if restriction.holds(trial)]
    values = " ".join(f"{key}={value}" for key, value in restriction.values.items())
    console.print(
        f"{values}: {count_of(len(part), 'trial')} of {len(planned.runnable)}. The sweep keeps the others, with what"
        " they have measured; this part has a report of its own."
    )


def costs_table(trials: Sequence[Trial], budget: Budget, *, is_predicted: bool = True) -> Table:
    """A line per trial with what its steps should cost, without start-up; all together; and what they cost at most.

    Args:
        is_predicted: False where nothing tells what a step takes, so that only the limits are known.
    """
    table = Table(box=None, pad_edge=False, expand=True, header_style="bold")
    table.add_column("predicted" if is_predicted else "at most", ratio=1)
    for head in HEADS:
        table.add_column(head, justify="right", no_wrap=True, min_width=max(len(head), LEAST_WIDTH))
    if is_predicted:
        predicted = [_costs(trial, budget, predicted_seconds(trial)) for trial in trials]
        for trial, cost in zip(trials, predicted, strict=True):
            table.add_row(LayoutCell(trial.trial_id), *_cost_texts(cost))
        table.add_row("all together, one after another", *_cost_texts(_sums(predicted)), style="bold")
    at_most = _sums([_costs(trial, budget, budget.most_seconds(trial)) for trial in trials])
    table.add_row("all together, if each runs into its time limit", *_cost_texts(at_most), style="bold")
    return table


def _cost_texts(costs: Mapping[str, float | None]) -> Iterator[str]:
    """The cells of a row; hours as people say them."""
    for head, value in costs.items():
        yield cost_text(value) if head != HOURS or value is None else duration(value * SECONDS_PER_HOUR)


def _costs(trial: Trial, budget: Budget, seconds: float) -> dict[str, float | None]:
    """What a trial of so many seconds costs, under each head; no dollars where the cluster's file names no price."""
    device_hours = budget.num_devices(trial) * seconds / SECONDS_PER_HOUR
    each_hour = taken_per_device_hour(trial.planned)
    costs = {
        head: None if (taken := each_hour[limit]) is None else device_hours * taken
        for head, limit in HEADS_OF_LIMITS.items()
    }
    return costs | {HOURS: seconds / SECONDS_PER_HOUR}


def _sums(costs: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """The sum under each head, also of the hours, as if one trial ran after another; None where one is not known."""
    known = {head: [value for cost in costs if (value := cost[head]) is not None] for head in HEADS}
    return {head: sum(values) if len(values) == len(costs) else None for head, values in known.items()}


def num_too_long(trials: Sequence[Trial], budget: Budget) -> int:
    return sum(predicted_seconds(trial) > budget.most_seconds(trial) for trial in trials)


def seconds_here(trials: Sequence[Trial], machine: MachineCapacity) -> float:
    """The seconds that trials should take on this machine, as many at once as its devices or cores hold."""
    room = machine.num_devices or machine.num_cores
    busy = 0.0
    for trial in trials:
        ranks = min(room, trial.planned.parallel.world_size)
        busy += ranks * (START_SECONDS + predicted_seconds(trial))
    return busy / room


def cost_text(value: float | None) -> str:
    """Three digits: the hours of a small job are not rounded to none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= LEAST or not value else f"<{LEAST:g}"
