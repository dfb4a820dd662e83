"""The states of trials as a table that fits the terminal: the wider it is, the more columns there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from conf.types.sweep_spec import Objective, is_of_time, own_figure
from results.analysis.findings.objective import value_text
from results.render.table import LayoutCell, columns_with_room
from results.render.units import tflops
from results.tables.sweep_tables import DISTURBED, outcome_style
from sweeps.points.objectives import measured_value
from sweeps.ranking.disturbed import disturbances
from sweeps.reading import Reading, TrialReading
from sweeps.sweep import age_seconds
from train_core.trial.measurement import Outcome

WIDE_COLUMNS = 150
"""From this width on, the cause or the last line of the log fits beside the numbers."""

LOG_COLUMNS = 40
NAME_COLUMNS = 12
"""A trial is known by so much of its name at least, before columns of numbers have any room."""
GIVE_WAY = ("nodes", "predicted", "TFLOPS", "step", "age")


class Column(NamedTuple):
    """A column of numbers.

    Attributes:
        least_width: the table has it from this width of the terminal on.
        cell: its text for one trial at a time, in seconds since the epoch.
    """

    name: str
    least_width: int
    cell: Callable[[Reading, float], str]


def state_table(
    states: Sequence[Reading],
    width: int,
    *,
    sought: Sequence[Objective] = ("throughput",),
    disturbed: Mapping[str, str] | None = None,
) -> Table:
    """Trial, state, age, nodes, step, TFLOPS measured and predicted; where there is room, loss, time left and log.

    The age is how long a trial has waited or run, or how long it ran before it ended.

    Args:
        sought: a loss among it stands before rates; in a narrow table it takes the place of the prediction.
        disturbed: what disturbed trials, by their names; None where that is not known yet.
    """
    now, by_loss = time.time(), "loss" in sought
    if disturbed is None:
        disturbed = disturbances_of(states, sought)
    left_out, first = ({"predicted"}, "loss") if by_loss and width < WIDE_COLUMNS else (set[str](), "")
    if states and not any(shows_rate(state, sought) for state in states):
        left_out = {"TFLOPS", "predicted"}
    shown_here = (each for each in COLUMNS if each.least_width <= width or each.name == first)
    columns = [each for each in shown_here if each.name not in left_out]
    columns += [_figure_column(name) for name in filter(None, map(own_figure, sought))]
    if by_loss:
        columns.sort(key=lambda each: each.name in ("TFLOPS", "predicted", "left"))
    outcomes = [DISTURBED if each.name in disturbed else (each.outcome or Outcome.PENDING).value for each in states]
    cells = {column.name: [column.cell(state, now) for state in states] for column in columns}
    names = min(NAME_COLUMNS, max((len(state.title) for state in states), default=0))
    shown = columns_with_room(cells, GIVE_WAY, width - names - max(map(len, outcomes), default=0) - 1)
    has_room = width >= WIDE_COLUMNS
    logs = [each.cause or disturbed.get(each.name, "") or each.last_log_line if has_room else "" for each in states]
    # Without a word of a log, nothing would stand beside the names in all the room that they were given.
    wide = any(logs)
    expand = wide or not has_room
    table = Table(box=None, pad_edge=False, expand=expand, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("trial", ratio=1)
    table.add_column("state", no_wrap=True)
    for name in shown:
        table.add_column(name, no_wrap=True, justify="right")
    if wide:
        table.add_column("last line of the log", no_wrap=True, overflow="ellipsis", max_width=LOG_COLUMNS)
    for number, (state, outcome, log) in enumerate(zip(states, outcomes, logs, strict=True)):
        # `Text` and not strings: rich would read brackets in causes and log lines as markup.
        texts = [Text(outcome, style=outcome_style(outcome))]
        texts += [Text(column[number]) for column in shown.values()]
        texts += [Text(log)] if wide else []
        table.add_row(LayoutCell(state.title, after="- "), *texts)
    return table


def shows_rate(state: Reading, sought: Sequence[Objective]) -> bool:
    """False of a program that knows nothing of the model, where no time is sought; see `SweepRecord.shows_rates`."""
    return any(map(is_of_time, sought)) or (state.experiment is not None and state.experiment.trainer.knows_model)


def disturbances_of(states: Sequence[Reading], sought: Sequence[Objective]) -> Mapping[str, str]:
    """What disturbed which trial; nothing where no time is sought, as a loss is as good of a disturbed run."""
    is_timed = any(map(is_of_time, sought))
    return disturbances(state for state in states if isinstance(state, TrialReading) and is_timed)


def trial_seconds_left(state: Reading) -> float | None:
    """Time for the steps that are left, at the pace of the last one; None where no step has been taken."""
    is_open = state.experiment is not None and state.experiment.trainer.is_script
    if state.outcome is not Outcome.RUNNING or state.step_seconds is None or is_open:
        return None
    return (state.num_steps - state.num_steps_done) * state.step_seconds


def duration(seconds: float) -> str:
    """`42s`, `3m05s`, `2h07m`, `3d04h`."""
    whole = max(0, round(seconds))
    if not whole and seconds > 0:
        return "<1s"
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


def _tera(flops_per_second: float | None) -> str:
    return tflops(flops_per_second) if flops_per_second else ""


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)


def _step(state: Reading) -> str:
    """The last step, of how many it is; how many a script makes nobody knows."""
    done = state.num_steps_done
    is_open = state.experiment is not None and state.experiment.trainer.is_script
    return "" if not done else str(done) if is_open else f"{done}/{state.num_steps}"


def _figure_column(name: str) -> Column:
    return Column(name, 0, lambda state, now: _shown_figure(state.figure(name)))


def _shown_figure(value: float | None) -> str:
    return "" if value is None else value_text("loss", value)


def _loss(state: Reading) -> str:
    # Of a trial that has ended, the one that the report shows; else that of its last step.
    loss = measured_value("loss", state)
    return _shown_figure(state.loss if loss is None else loss)


COLUMNS = (
    Column(
        "age", 0, lambda each, now: _duration(None if each.outcome is Outcome.INFEASIBLE else age_seconds(each, now))
    ),
    Column("nodes", 0, lambda state, now: str(state.experiment.num_nodes) if state.experiment else ""),
    Column("step", 0, lambda state, now: _step(state)),
    Column("TFLOPS", 0, lambda state, now: _tera(state.model_flops_per_second_per_device)),
    Column("predicted", 0, lambda state, now: _tera(predicted_flops(state))),
    Column("loss", 100, lambda state, now: _loss(state)),
    Column("left", 100, lambda state, now: _duration(trial_seconds_left(state))),
)
