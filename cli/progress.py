"""Live progress of a sweep on this machine: a table in a terminal, and elsewhere a plain line for each event."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from conf.units import TERA
from launcher.progress import Progress
from results.terminal import outcome_style
from sweeps.reading import Reading
from train_core.measurement import Outcome

WIDE_COLUMNS = 110
"""From this width on, the last line of the log fits beside the numbers."""

LOG_COLUMNS = 40


class LiveProgress:
    """A table that is drawn again in place, as wide as the terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # rich would draw from a thread of its own, several times a second, on cores that are being measured.
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, states: Sequence[Reading]) -> None:
        # A table that is taller than the terminal could not be drawn again in place.
        rows = max(3, self._console.height - 6)
        self._live.update(
            Group(state_table(_worth_showing(states, rows), self._console.width), _footer(states)), refresh=True
        )


class PlainProgress:
    """A line when a trial starts and one when it ends, without control codes; for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seen: dict[str, Outcome | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def show(self, states: Sequence[Reading]) -> None:
        """Tell what has changed. The first call only remembers what had ended before the sweep went on."""
        before, self._seen = self._seen, {state.name: state.outcome for state in states}
        for state in states:
            known = state.outcome if not before and state.outcome is not Outcome.RUNNING else before.get(state.name)
            if state.outcome is not known:
                self._tell(state, states)

    def _tell(self, state: Reading, states: Sequence[Reading]) -> None:
        if state.outcome is Outcome.RUNNING:
            self._line(f"started   {state.name}")
        elif state.outcome is not None and state.outcome.is_final:
            took = f" after {duration(state.ended - state.started)}" if state.ended and state.started else ""
            self._line(f"finished  {state.name}: {state.outcome}{took}{_numbers(state)} [{_counted(states)}]")

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


def progress_on(console: Console) -> Progress:
    """Live in a terminal, plain lines elsewhere."""
    return LiveProgress(console) if console.is_terminal and not console.is_dumb_terminal else PlainProgress(console)


def sweep_seconds_left(states: Sequence[Reading], now: float) -> float | None:
    """Time until the last trial ends, from the trials that this sweep has completed; None before the first has.

    It assumes that the others last as long as those that ended, and that as many go on running at once as do now.
    """
    spans = [(s.started, s.ended) for s in states if s.outcome is Outcome.COMPLETED and s.started and s.ended]
    unfinished = sum(state.outcome in (Outcome.PENDING, Outcome.RUNNING) for state in states)
    if not spans or not unfinished:
        return None
    busy = sum(ended - started for started, ended in spans)
    running = [state.started for state in states if state.outcome is Outcome.RUNNING and state.started]
    spent = sum(now - started for started in running)
    return max(0.0, (unfinished * busy / len(spans) - spent) / max(1, len(running)))


def trial_seconds_left(state: Reading) -> float | None:
    """Time for the steps that are left, at the pace of the last one; None where no step has been taken."""
    if state.outcome is not Outcome.RUNNING or state.step_seconds is None:
        return None
    return (state.num_steps - state.num_steps_done) * state.step_seconds


def duration(seconds: float) -> str:
    """`42s`, `3m05s`, `2h07m`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def _worth_showing(states: Sequence[Reading], rows: int) -> list[Reading]:
    """What fits the terminal: running trials first, then the last that ended, then those that wait."""
    relevant = [state for state in states if state.outcome is not None]
    rank = {Outcome.RUNNING: 0, Outcome.PENDING: 2, Outcome.INFEASIBLE: 3}
    # What is shown keeps the order of the sweep, so that lines do not jump about when a trial ends.
    chosen = sorted(relevant, key=lambda state: (rank.get(state.outcome or Outcome.PENDING, 1), -(state.ended or 0)))
    kept = {state.name for state in chosen[:rows]}
    return [state for state in relevant if state.name in kept]


def state_table(states: Sequence[Reading], width: int) -> Table:
    """Trial, state, step, TFLOPS, loss, time left: 80 columns; a wider terminal also shows the log."""
    table = Table(box=None, pad_edge=False, expand=True, header_style="bold")
    table.add_column("trial", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("state", no_wrap=True)
    for name in ("step", "TFLOPS", "loss", "left"):
        table.add_column(name, no_wrap=True, justify="right")
    wide = width >= WIDE_COLUMNS
    if wide:
        table.add_column("last line of the log", no_wrap=True, overflow="ellipsis", max_width=LOG_COLUMNS)
    for state in states:
        table.add_row(*_row(state), *([Text(state.cause or state.last_log_line)] if wide else []))
    return table


def _row(state: Reading) -> list[Text]:
    outcome = state.outcome or Outcome.PENDING
    left = trial_seconds_left(state)
    rate = state.model_flops_per_second_per_device
    step = f"{state.num_steps_done}/{state.num_steps}" if state.num_steps_done else ""
    return [
        Text(state.name),
        Text(outcome.value, style=outcome_style(outcome)),
        Text(step),
        Text(f"{rate / TERA:.4g}" if rate else ""),
        Text(f"{state.loss:.3f}" if state.loss is not None else ""),
        Text(duration(left) if left is not None else ""),
    ]


def _footer(states: Sequence[Reading]) -> Text:
    left = sweep_seconds_left(states, time.time())
    about = "" if left is None else f", about {duration(left)} left"
    return Text(f"{_counted(states)}{about}. Ctrl-C stops; the same command continues.", style="dim")


def _counted(states: Sequence[Reading]) -> str:
    # Points that cannot run are no work, neither done nor to do.
    chosen = [state.outcome for state in states if state.outcome not in (None, Outcome.INFEASIBLE)]
    ended = sum(outcome is not None and outcome.is_final for outcome in chosen)
    return f"{ended} of {len(chosen)} trials ended"


def _numbers(state: Reading) -> str:
    if state.outcome is not Outcome.COMPLETED or state.model_flops_per_second_per_device is None:
        return f"; {state.cause}" if state.cause else ""
    rate = f"{state.model_flops_per_second_per_device / TERA:.4g} TFLOPS per device"
    return f"; {state.step_seconds:.3g} s per step, {rate}, loss {state.loss:.3f}"
