"""The parts of a sweep that are measured or left out, in the sentences that `trisweep sweep` prints.

Of a dry run also the money and time: what each point should cost and may cost at most, and all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from cli.output.console import console
from conf.nearest import listed
from conf.units import count_of
from launcher.control.rules import Budget, Cost, predicted_seconds
from results.terminal.drawing import LayoutCell

if TYPE_CHECKING:
    from launcher.machine import MachineCapacity
    from sweeps.later_command import Restriction
    from sweeps.sweep import Sweep
    from sweeps.trial import SweepRecord, Trial

MOST_NAMED = 5

LEAST_WIDTH = 5
START_SECONDS = 3.0
"""Of a trial's processes, until their first step: 2 to 4 s on two cores."""
HEADS = ("device-hours", "dollars", "kWh", "hours")


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


def costs_table(trials: Sequence[Trial], budget: Budget) -> Table:
    """A line per trial with what its steps should cost, without start-up; all together; and what they cost at most."""
    table = Table(box=None, pad_edge=False, expand=True, header_style="bold")
    table.add_column("predicted", ratio=1)
    for head in HEADS:
        table.add_column(head, justify="right", no_wrap=True, min_width=max(len(head), LEAST_WIDTH))
    predicted = [_cost(trial, budget, predicted_seconds(trial)) for trial in trials]
    for trial, cost in zip(trials, predicted, strict=True):
        table.add_row(LayoutCell(trial.trial_id), *map(cost_text, cost))
    table.add_row("all together, one after another", *map(cost_text, total(predicted)), style="bold")
    at_most = [_cost(trial, budget, budget.most_seconds(trial)) for trial in trials]
    table.add_row("the same, if each runs into its time limit", *map(cost_text, total(at_most)), style="bold")
    return table


def num_too_long(trials: Sequence[Trial], budget: Budget) -> int:
    """The number of trials that are predicted to take longer than they may."""
    return sum(predicted_seconds(trial) > budget.most_seconds(trial) for trial in trials)


def seconds_here(trials: Sequence[Trial], machine: MachineCapacity) -> float:
    """The seconds that trials should take on this machine, as many at once as its devices or cores hold."""
    room = machine.num_devices or machine.num_cores
    busy = 0.0
    for trial in trials:
        ranks = min(room, trial.planned.parallel.world_size)
        busy += ranks * (START_SECONDS + predicted_seconds(trial))
    return busy / room


def total(costs: Sequence[Cost]) -> Cost:
    """The sum; of the hours too, as if one trial ran after another."""
    dollars = [cost.dollars for cost in costs if cost.dollars is not None]
    return Cost(
        sum(cost.device_hours for cost in costs),
        sum(dollars) if len(dollars) == len(costs) else None,
        sum(cost.energy_kwh for cost in costs),
        sum(cost.hours for cost in costs),
    )


def _cost(trial: Trial, budget: Budget, seconds: float) -> Cost:
    return Cost.of(trial.planned, budget.num_devices(trial), seconds)


def cost_text(value: float | None) -> str:
    """Three digits: the hours of a small job are not rounded to none."""
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
