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
