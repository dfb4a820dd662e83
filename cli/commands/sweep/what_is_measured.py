"""The parts of a sweep that are measured or left out, in the sentences that `trisweep sweep` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.output.console import console
from conf.nearest import listed
from conf.units import count_of

if TYPE_CHECKING:
    from sweeps.later_command import Restriction
    from sweeps.sweep import Sweep
    from sweeps.trial import SweepRecord

MOST_NAMED = 5


def print_left_out(record: SweepRecord) -> None:
    """Print how many points `sweep.max_trials` leaves out, and which."""
    fitting = [trial for trial in record.trials if trial.infeasible_reason is None]
    left_out = [trial.trial_id for trial in fitting if not trial.selected]
    if not left_out:
        return
    console.print(
        f"{len(fitting)} fit, {len(fitting) - len(left_out)} are measured: sweep.max_trials={record.spec.max_trials}"
        f" takes the baseline and the best predicted. Left out: {listed(left_out, MOST_NAMED)}."
    )


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


def num_attempts(sweep: Sweep) -> int:
    """Attempts at all trials so far."""
    from sweeps.folder.history import History

    return sum(course.num_attempts for course in History.kept_in(sweep.folder).courses.values())


def print_nothing_to_do(stored: Sweep, before: int) -> None:
    """Print that a command started nothing, because there was nothing left to start.

    Args:
        before: attempts before the command.
    """
    if num_attempts(stored) > before:
        return
    from cli.output.progress import is_troubled
    from train_core.measurement import Outcome

    readings = stored.read()
    measured = sum(reading.performance is not None for reading in readings)
    failed = sum(map(is_troubled, readings))
    stages = sum(bool(reading.trial.stage) and reading.outcome is Outcome.COMPLETED for reading in readings)
    ends = [f"{count_of(measured, 'trial')} measured"]
    ends += [f"{count_of(stages, 'stage')} completed"] if stages else []
    ends += [f"{failed} failed (--retry-failed runs {'it' if failed == 1 else 'them'} again)"] if failed else []
    console.print(f"Nothing to do: {', '.join(ends)}. --remeasure measures every point again.")
