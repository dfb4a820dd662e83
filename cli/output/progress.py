"""Live progress of a sweep on this machine: a table in a terminal, and elsewhere a plain line for each event."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from cli.output.next_command import next_command
from cli.output.state_table import duration, shows_rate, state_table
from conf.types.sweep_spec import Objective, own_figure
from conf.units import TERA, count_of
from launcher.control.workplace import ProgressDisplay
from results.analysis.findings.objective import value_text
from sweeps.points.objectives import cost, measured_value
from sweeps.reading import CANCELLED_BY_NAME, Reading, TrialReading
from sweeps.sweep import Sweep
from train_core.trial.measurement import LIVE, Outcome

GOES_ON = "Ctrl-C stops; the same command continues."
MOST_CAUSES = 5
MARGIN_LINES = 4
"""Lines of a terminal beside those of trials and causes: the table's head, the two last lines, and the prompt's."""

NAMED = {Outcome.OUT_OF_MEMORY: "out of memory", Outcome.CANCELLED: "cancelled"}
"""Ends after which a trial runs again only where a person names it: it would need as much, or was ended for good."""


@dataclass(frozen=True)
class SweepUnderWay:
    """The traits of a sweep that its progress is shown by.

    Attributes:
        may_grow: a search may yet ask for trials beside those that are known.
    """

    objective: tuple[Objective, ...] = ("throughput",)
    may_grow: bool = False


PLAIN_SWEEP = SweepUnderWay()


class LiveProgress:
    """A table that is drawn again in place, as wide as the terminal, and below it why trials failed."""

    def __init__(
        self, console: Console, sweep: SweepUnderWay = PLAIN_SWEEP, hint: str = GOES_ON, *, stays: bool = False
    ) -> None:
        self._console, self.sweep, self.hint = console, sweep, hint
        # rich would draw from a thread of its own, several times a second, on cores that are being measured.
        self._live = Live(console=console, auto_refresh=False, transient=not stays)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, states: Sequence[Reading]) -> None:
        self._live.update(self._picture(states), refresh=True)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def _picture(self, states: Sequence[Reading]) -> RenderableType:
        # A table that is taller than the terminal could not be drawn again in place.
        room, width = max(3, self._console.height - MARGIN_LINES), self._console.width
        sought = self.sweep.objective
        troubled = [state for state in worth_showing(states, room, sought[0]) if is_troubled(state)]
        causes = troubled[: min(MOST_CAUSES, room // 3)]
        rows = worth_showing(states, room - len(causes), sought[0])
        left_out = sum(state.outcome is not None for state in states) - len(rows)
        lines = [_cause_line(state, width) for state in causes]
        table = state_table(rows, width, sought=sought)
        unseen = f"; {left_out} more are not shown" if left_out else ""
        counts = Text(f"{outcome_counts(states)}{unseen}", style="bold", no_wrap=True, overflow="ellipsis")
        said = f"{_progress_sentence(states, self.sweep)}. {self.hint}"
        return Group(table, *lines, counts, Text(said, style="dim", no_wrap=True, overflow="ellipsis"))


class PlainProgress(ProgressDisplay):
    """A line when a trial starts and one when it ends, without control codes; for logs and pipes."""

    def __init__(self, console: Console, sweep: SweepUnderWay = PLAIN_SWEEP) -> None:
        self._console, self.sweep = console, sweep
        self._seen: dict[str, Outcome | None] = {}

    def show(self, states: Sequence[Reading]) -> None:
        """Tell what has changed. The first call only remembers what had ended before the sweep went on."""
        before, self._seen = self._seen, {state.name: state.outcome for state in states}
        for state in states:
            is_first_look = not before and state.outcome is not Outcome.RUNNING
            earlier = state.outcome if is_first_look else before.get(state.name)
            if state.outcome is not earlier:
                self._tell(state, states)

    def _tell(self, state: Reading, states: Sequence[Reading]) -> None:
        if state.outcome is Outcome.RUNNING:
            self.say(f"started   {state.title}")
        elif state.outcome is not None and state.outcome.is_final:
            took = (
                f" after {duration(state.end_time - state.start_time)}" if state.end_time and state.start_time else ""
            )
            numbers, summary = _numbers(state, self.sweep.objective), _progress_sentence(states, self.sweep)
            self.say(f"finished  {state.title}: {state.outcome}{took}{numbers} [{summary}]")

    def say(self, text: str) -> None:
        # Titles may hold brackets and colons, which rich would take for markup and emoji; logs are not wrapped.
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


def progress_on(console: Console, sweep: SweepUnderWay = PLAIN_SWEEP) -> ProgressDisplay:
    is_live = console.is_terminal and not console.is_dumb_terminal
    return LiveProgress(console, sweep) if is_live else PlainProgress(console, sweep)


def sweep_seconds_left(states: Sequence[Reading], now: float) -> float | None:
    """Time until the last trial ends, from the trials that this sweep has completed.

    It assumes that the others last as long as those of the same stage that ended, and that as many go on running at
    once as do now. None where nothing is left, where no trial of a stage that is left has ended, and where all that
    run have taken longer than those that ended.
    """
    spans = dict[str, list[float]]()
    for state in states:
        if state.outcome is Outcome.COMPLETED and state.start_time and state.end_time:
            spans.setdefault(_stage(state), []).append(state.end_time - state.start_time)
    unfinished = [state for state in states if state.outcome in LIVE or _waits_again(state)]
    if any(_stage(state) not in spans for state in unfinished):
        return None
    running = [state for state in unfinished if state.outcome is Outcome.RUNNING and state.start_time]
    spent = {state.name: now - (state.start_time or now) for state in running}
    left = sum(max(0.0, fmean(spans[_stage(state)]) - spent.get(state.name, 0.0)) for state in unfinished)
    return left / max(1, len(running)) or None


def _stage(state: Reading) -> str:
    return state.trial.stage if isinstance(state, TrialReading) else ""


def _waits_again(state: Reading) -> bool:
    return isinstance(state, TrialReading) and state.waits_again


def _progress_sentence(states: Sequence[Reading], sweep: SweepUnderWay) -> str:
    """The share that has ended, and how long the rest takes, where it is known what the rest is."""
    remaining = None if sweep.may_grow else sweep_seconds_left(states, time.time())
    return share_ended(states, sweep) + ("" if remaining is None else f", about {duration(remaining)} left")


def _cause_line(state: Reading, width: int) -> Text:
    # One line each: the live picture counts lines, and one that wrapped would push the table out of its place.
    line = Text.assemble((f"{state.title}: ", "bold"), state.cause.replace("\n", " "), no_wrap=True)
    line.truncate(width, overflow="ellipsis")
    return line


def outcome_counts(states: Sequence[Reading], num_disturbed: int = 0) -> str:
    """`3 RUNNING, 2 COMPLETED`, the most frequent first; what a table calls disturbed has completed."""
    counts = Counter(state.outcome.value if state.outcome else "left out" for state in states)
    notes = {Outcome.COMPLETED.value: f" ({num_disturbed} of them disturbed)"} if num_disturbed else {}
    return ", ".join(f"{number} {name}{notes.get(name, '')}" for name, number in counts.most_common())


def share_ended(states: Sequence[Reading], sweep: SweepUnderWay = PLAIN_SWEEP) -> str:
    """`5 of 20 trials ended`; of a search that goes on, `4 of 4 trials so far ended`."""
    # Points that cannot run are no work, neither done nor to do.
    chosen = [state for state in states if state.outcome not in (None, Outcome.INFEASIBLE)]
    ended = sum(state.outcome is not None and state.outcome.is_final and not _waits_again(state) for state in chosen)
    return f"{ended} of {count_of(len(chosen), 'trial')} {'so far ' if sweep.may_grow else ''}ended"


def _numbers(state: Reading, sought: Sequence[Objective]) -> str:
    if state.outcome is not Outcome.COMPLETED or state.model_flops_per_second_per_device is None:
        return f"; {state.cause}" if state.cause else ""
    flops = f", {state.model_flops_per_second_per_device / TERA:.4g} TFLOPS per device"
    rate = f"; {state.step_seconds:.3g} s per step{flops if shows_rate(state, sought) else ''}"
    if state.performance is not None and not state.performance.is_timed:
        rate = ""
    loss = measured_value("loss", state)  # the one that tables and reports show
    shown = "" if loss is None else f"{',' if rate else ';'} loss {value_text('loss', loss)}"
    printed = {name: state.figure(name) for name in filter(None, map(own_figure, sought))}
    told = [f"{name} {value_text('loss', value)}" for name, value in printed.items() if value is not None]
    return f"; {', '.join(told)}" if told else f"{rate}{shown}"


GOOD_ENDS = (Outcome.COMPLETED, Outcome.PRUNED, Outcome.INFEASIBLE)


def worth_showing(states: Sequence[Reading], rows: int, objective: Objective = "throughput") -> list[Reading]:
    """As many trials as rows: the best, the last that failed, those that run, the last that ended, those that wait."""
    relevant = [state for state in states if state.outcome is not None]
    if len(relevant) <= rows:
        return relevant
    newest = sorted(relevant, key=lambda state: -(state.end_time or 0.0))
    troubled = [state for state in newest if is_troubled(state)]
    # The order is that of importance: whatever comes after the rows are full is not seen.
    order = [*_best(relevant, objective), *troubled[: rows // 4]]
    order += [state for state in relevant if state.outcome is Outcome.RUNNING]
    order += [state for state in newest if state.end_time]
    order += sorted(relevant, key=lambda state: state.outcome is not Outcome.PENDING)
    names = set(list(dict.fromkeys(state.name for state in order))[:rows])
    # What is shown keeps the order of the sweep, so that lines do not jump about when a trial ends.
    return [state for state in relevant if state.name in names]


def is_troubled(state: Reading) -> bool:
    """True if it ended badly, or waits although it was started."""
    return has_failed(state) or (state.outcome is Outcome.PENDING and bool(state.cause))


def has_failed(state: Reading) -> bool:
    return state.outcome is not None and state.outcome.is_final and state.outcome not in GOOD_ENDS


def _best(states: Sequence[Reading], objective: Objective) -> list[Reading]:
    """The trial that measured the best value of what is sought, if any did."""
    both = ((state, measured_value(objective, state)) for state in states)
    costs = {state.name: cost(objective, value) for state, value in both if value is not None and isfinite(value)}
    best = min(costs, key=lambda name: costs[name], default=None)
    return [state for state in states if state.name == best]


def ends_in_words(sweep: Sweep, readings: Sequence[TrialReading]) -> str:
    """`2 trials measured, 1 failed (--retry-failed runs it again)`."""
    completed = [each for each in readings if each.outcome is Outcome.COMPLETED]
    stages = sum(bool(each.trial.stage) for each in completed)
    failed = num_run_again(readings)
    ends = [f"{count_of(len(completed) - stages, 'trial')} measured"]
    ends += [f"{count_of(stages, 'stage')} completed"] if stages else []
    ends += [f"{failed} failed (--retry-failed runs {_pronoun(failed)} again)"] if failed else []
    for outcome, words in NAMED.items():
        if number := sum(each.outcome is outcome and not _is_taken_up_again(each) for each in readings):
            again = next_command("retry", sweep, "--trial", "ID")
            ends.append(f"{number} {words} (only `{again}` runs {_pronoun(number)} again)")
    taken_up = sum(map(_is_taken_up_again, readings))
    ends += [f"{taken_up} cancelled (the sweep's command runs {_pronoun(taken_up)} again)"] if taken_up else []
    return ", ".join(ends)


def num_run_again(readings: Sequence[TrialReading]) -> int:
    """Trials that failed, and that `--retry-failed` runs again: those that the last command asked for."""
    return sum(each.trial.selected and has_failed(each) and each.outcome not in NAMED for each in readings)


def _is_taken_up_again(reading: TrialReading) -> bool:
    """True if a person ended the trial, but not by its name: the sweep's next command runs it again."""
    return reading.outcome is Outcome.CANCELLED and reading.cause != CANCELLED_BY_NAME


def _pronoun(number: int) -> str:
    return "it" if number == 1 else "them"
