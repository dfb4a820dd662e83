"""The states of trials as a table that fits the terminal: the wider it is, the more columns there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from results.terminal.layout_names import LayoutCell
from results.terminal.tables import DISTURBED, outcome_style
from results.units import tflops
from sweeps.glance import age_seconds
from sweeps.points.objectives import measured_value
from sweeps.reading import Reading, TrialReading
from sweeps.repeats.ranking import disturbances
from train_core.measurement import Outcome

WIDE_COLUMNS = 150
"""From this width on, the cause or the last line of the log fits beside the numbers."""

LOG_COLUMNS = 40


class Column(NamedTuple):
    """A column of numbers.

    Attributes:
        least_width: the table has it from this width of the terminal on.
        cell: its text for one trial at a time, in seconds since the epoch.
    """

    name: str
    least_width: int
    cell: Callable[[Reading, float], str]


def state_table(states: Sequence[Reading], width: int, *, by_loss: bool = False) -> Table:
    """Trial, state, age, nodes, step, TFLOPS measured and predicted; where there is room, loss, time left and log.

    The age is how long a trial has waited or run, or how long it ran before it ended.

    Args:
        by_loss: the loss is what the trials are for, so that a narrow table has it in place of the prediction.
    """
    now = time.time()
    disturbed = disturbances(state for state in states if isinstance(state, TrialReading))
    left_out, first = ("predicted", "loss") if by_loss and width < WIDE_COLUMNS else ("", "")
    columns = [each for each in COLUMNS if each.name != left_out and (each.least_width <= width or each.name == first)]
    table = Table(box=None, pad_edge=False, expand=True, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("trial", ratio=1)
    table.add_column("state", no_wrap=True)
    for column in columns:
        table.add_column(column.name, no_wrap=True, justify="right")
    wide = width >= WIDE_COLUMNS
    if wide:
        table.add_column("last line of the log", no_wrap=True, overflow="ellipsis", max_width=LOG_COLUMNS)
    for state in states:
        why = disturbed.get(state.name, "")
        outcome = DISTURBED if why else (state.outcome or Outcome.PENDING).value
        texts = [Text(outcome, style=outcome_style(outcome))]
        texts += [Text(column.cell(state, now)) for column in columns]
        texts += [Text(state.cause or why or state.last_log_line)] if wide else []
        table.add_row(LayoutCell(state.title, after="- "), *texts)
    return table


def trial_seconds_left(state: Reading) -> float | None:
    """Time for the steps that are left, at the pace of the last one; None where no step has been taken."""
    if state.outcome is not Outcome.RUNNING or state.step_seconds is None:
        return None
    return (state.num_steps - state.num_steps_done) * state.step_seconds


def duration(seconds: float) -> str:
    """`42s`, `3m05s`, `2h07m`, `3d04h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 100 * 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def predicted_flops(state: Reading) -> float | None:
    """Model FLOP/s per device that the sweep predicted for the trial; None of a training, of which it keeps none."""
    estimate = state.trial.estimate if isinstance(state, TrialReading) else None
    return estimate.model_flops_per_second_per_device if estimate else None


def _age(state: Reading, now: float) -> str:
    seconds = age_seconds(state, now) if state.outcome is not Outcome.INFEASIBLE else None
    return "" if seconds is None else duration(seconds)


def _nodes(state: Reading, now: float) -> str:
    return str(state.experiment.num_nodes) if state.experiment else ""


def _step(state: Reading, now: float) -> str:
    return f"{state.num_steps_done}/{state.num_steps}" if state.num_steps_done else ""


def _rate(state: Reading, now: float) -> str:
    return _tera(state.model_flops_per_second_per_device)


def _predicted_rate(state: Reading, now: float) -> str:
    return _tera(predicted_flops(state))


def _loss(state: Reading, now: float) -> str:
    # Of a trial that has ended, the one that the report shows; else that of its last step.
    loss = measured_value("loss", state)
    loss = state.loss if loss is None else loss
    return "" if loss is None else f"{loss:.4g}"


def _remaining_time(state: Reading, now: float) -> str:
    seconds = trial_seconds_left(state)
    return "" if seconds is None else duration(seconds)


def _tera(flops_per_second: float | None) -> str:
    return tflops(flops_per_second) if flops_per_second else ""


COLUMNS = (
    Column("age", 0, _age),
    Column("nodes", 0, _nodes),
    Column("step", 0, _step),
    Column("TFLOPS", 0, _rate),
    Column("predicted", 0, _predicted_rate),
    Column("loss", 100, _loss),
    Column("left", 100, _remaining_time),
)
