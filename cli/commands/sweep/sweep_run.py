"""One sweep that a command carries out, and how the command ends: why, with which report, and what was not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import typer

from cli.commands.report import report_on
from cli.output.console import console, print_complaint, print_unwrapped
from cli.output.next_command import next_command, same_command
from cli.output.progress import SweepUnderWay, ends_in_words, has_failed, num_run_again
from conf.errors import EXIT_FAILED, TrisweepError
from conf.overrides import value_text
from conf.types.sites import TrackingSpec
from conf.units import count_of
from launcher.control.orders import SweepOrders
from launcher.control.rules import Rules
from launcher.where import SweepPlace, slurm_answers
from sweeps.folder.journal import History
from sweeps.later_command import Restriction
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep, by_predecessor, chain_of, first_runs, points_of_configuration
from train_core.measurement import LIVE, Outcome

MEASURED_AGAIN = "--remeasure measures every point again."


@dataclass(frozen=True, slots=True)
class SweepRun:
    """A sweep as one command carries it out.

    Attributes:
        orders: what the person ordered beside the points.
        restriction: the part of the sweep that the command names; None for all of it.
    """

    place: SweepPlace
    sweep: Sweep
    rules: Rules
    orders: SweepOrders
    restriction: Restriction | None


def under_way(run: SweepRun) -> SweepUnderWay:
    """What the progress of the sweep is shown by."""
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
    wanted = _readings_of_command(readings, run.rules)
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


def _readings_of_command(readings: Sequence[TrialReading], rules: Rules) -> list[TrialReading]:
    """What the command asked for: not what earlier ones did, nor points beside the part that it names."""
    asked = (each for each in readings if each.trial.role == "asked")
    return [each for each in asked if each.trial.stage or rules.wants(each.trial)]


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
    """Attempts at all trials so far."""
    return sum(course.num_attempts for course in History.kept_in(sweep.folder).courses.values())


def print_nothing_to_do(stored: Sweep, there: Sequence[TrialReading], before: int) -> None:
    """Print that a command started nothing, because there was nothing left to start.

    Args:
        there: the points of the command and their stages, whichever command measured them.
        before: attempts before the command.
    """
    if num_attempts(stored) > before:
        return
    print_unwrapped(f"Nothing to do: {ends_in_words(stored, there)}. {MEASURED_AGAIN}")


def end_command(sweep: Sweep, wanted: Sequence[TrialReading], place: SweepPlace) -> None:
    """Name the commands that say why trials failed and run them again.

    Args:
        wanted: what the command asked for.

    Raises:
        typer.Exit: no point of the sweep has a measurement.
    """
    again = num_run_again(wanted)
    # Whoever cancelled a trial by its name knows why it ended.
    if failed := sum(has_failed(each) and each.outcome is not Outcome.CANCELLED for each in wanted):
        console.print(f"{count_of(failed, 'trial')} failed. Why{', and to run what failed again' if again else ''}:")
        print_unwrapped(f"  {next_command('status', sweep)}")
    if again:
        own = place.composition.overrides.without({"tracking"})
        here = [] if place.on_slurm or not slurm_answers() else ["--here"]
        print_unwrapped(f"  {same_command('sweep', sweep.record.name, own, *here, '--retry-failed')}")
    has_measured = any(each.performance for each in wanted) or any(each.performance for each in sweep.read())
    if not has_measured:
        console.print("Nothing was measured.")
        raise typer.Exit(EXIT_FAILED)
