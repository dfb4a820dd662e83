"""`trisweep status` on a terminal: a line per trial, why some stopped or failed, and what the journal adds.

With --watch it is drawn again every few seconds, until the sweep has ended or Ctrl-C.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Container, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cli.output.progress import LiveProgress, PlainProgress, SweepUnderWay, outcome_counts, worth_showing
from cli.output.state_table import disturbances_of, duration, state_table
from conf.nearest import listed
from conf.types.sweep_spec import Objective
from conf.units import SECONDS_PER_HOUR, count_of
from launcher.folder_lock import holder
from launcher.long_run import trainings_of
from launcher.slurm.query import WATCHING
from launcher.slurm.reconcile import reconcile
from results.tables.sweep_tables import outcome_style
from sweeps.folder.journal import History, Journal
from sweeps.reading import Reading, TrialReading
from sweeps.sweep import Sweep, in_chains
from sweeps.trial import SweepFolder
from train_core.trial.measurement import LIVE, Outcome

MOST_NAMED = 5
MOST_ROWS = 500
"""Of more trials than these, those that are worth the most are listed; those that only wait are counted alone."""

# The line of such a trial in the table says all that there is to say.
UNEVENTFUL = (None, Outcome.COMPLETED, Outcome.PENDING)

LEAVES = "Ctrl-C leaves; the sweep goes on."
HAS_ENDED = "The sweep has ended."
REDRAW_SECONDS = 2.0
SHARE_OF_TIME = 5
"""Reading thousands of folders takes a while, and is to take at most one second in so many."""

REPEAT_SECONDS = 60.0


def status_table(
    states: Sequence[Reading], width: int, *, sought: Sequence[Objective] = ("throughput",)
) -> RenderableType:
    """A table of the chosen trials, and below it details of those that run, stopped or ended badly."""
    chosen = [state for state in in_chains(states) if state.outcome is not None]
    shown, never_began = chosen, list[Reading]()
    if len(chosen) > MOST_ROWS:
        never_began = [state for state in chosen if _never_began(state)]
        waiting = {state.name for state in never_began}
        shown = worth_showing([state for state in chosen if state.name not in waiting], MOST_ROWS, sought[0])
    details = _details_of(chosen, {state.name for state in shown})
    disturbed = disturbances_of(chosen, sought)
    table = state_table(shown, width, sought=sought, disturbed=disturbed)
    unlisted = _unlisted_lines(never_began, len(chosen) - len(shown) - len(never_began))
    counts = Text(f"\n{outcome_counts(states, len(disturbed))}", style="bold")
    return Group(table, *unlisted, *details, counts, *_waiting_lines(states), *_left_out_lines(states))


def _never_began(state: Reading) -> bool:
    """True if it only waits, or was cancelled when it did."""
    return state.is_called_off or (state.outcome is Outcome.PENDING and not _is_eventful(state))


def _unlisted_lines(never_began: Sequence[Reading], num_others: int) -> list[Text]:
    """A line that says what the table leaves out, if it leaves anything out."""
    is_cancelled = any(state.is_called_off for state in never_began)
    how = "never began, as the sweep was cancelled" if is_cancelled else "only wait"
    parts = [f"{count_of(len(never_began), 'trial')} that {how}"] if never_began else []
    parts += [f"{count_of(num_others, 'trial')} that the table has no room for"] if num_others else []
    note = f"Not listed: {' and '.join(parts)}; `trisweep status --json` lists all."
    return [Text(note, style="dim")] if parts else []


def _is_eventful(state: Reading) -> bool:
    return state.outcome not in UNEVENTFUL or (state.outcome is Outcome.PENDING and bool(state.cause))


def _details_of(states: Sequence[Reading], shown: Container[str]) -> list[RenderableType]:
    """Details of each that is shown and has some; several that ended alike have the first one's."""
    alike: dict[tuple[object, ...], list[Reading]] = {}
    for state in states:
        if not (_is_eventful(state) or (state.name in shown and state.damaged_files)):
            continue
        is_like_others = state.outcome is not Outcome.RUNNING and state.cause and not state.damaged_files
        alone = "" if is_like_others else state.name
        alike.setdefault((state.outcome, state.cause, state.failing_rank, alone), []).append(state)
    groups = (group for group in alike.values() if any(each.name in shown for each in group))
    return [_details(first, others) for first, *others in groups]


def _details(state: Reading, others: Sequence[Reading]) -> RenderableType:
    """Cause, last log line and log path, each on a line of its own that a terminal may wrap."""
    outcome = state.outcome or Outcome.PENDING
    title = Text(f"\n{state.title} ", style="bold") + Text(outcome.value, style=outcome_style(outcome))
    job = f"job {state.job_id}" + (f" ({state.scheduler_state})" if state.scheduler_state else "")
    lines = {
        "cause": state.cause,
        "rank": "" if state.failing_rank is None else str(state.failing_rank),
        "job": job if state.job_id else "",
        "last line": state.last_log_line,
        "log": _shorter_path(state.log),
        "aside": ", ".join(_shorter_path(path) for path in state.damaged_files),
        "likewise": listed([each.title for each in others], MOST_NAMED) if others else "",
    }
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in lines.items():
        if value:
            grid.add_row(name, Text(value))
    return Group(title, Padding(grid, (0, 0, 0, 2)))


def _shorter_path(path: Path | None) -> str:
    """The path, or its form relative to the current folder if that is shorter."""
    return min((str(path), os.path.relpath(path)), key=len) if path else ""


def _left_out_lines(states: Sequence[Reading]) -> list[Text]:
    titles: dict[str, list[str]] = {}
    for state in states:
        if state.outcome is None:
            titles.setdefault(state.cause.removeprefix("left out: "), []).append(state.title)
    return [Text(f"Left out ({cause}): {listed(names, MOST_NAMED)}.") for cause, names in titles.items()]


def _waiting_lines(states: Sequence[Reading]) -> list[Text]:
    """A line that says for what jobs wait, in Slurm's words; none where no job does."""
    waiting = (state.job for state in states if state.job is not None and state.job.is_waiting)
    reasons = Counter(job.reason for job in waiting if job.reason not in ("", "None"))
    listed = ", ".join(f"{number} for {reason}" for reason, number in reasons.most_common())
    return [Text(f"Waiting in Slurm: {listed}.")] if listed else []


def state_lines(sweep: Sweep, trials: Sequence[TrialReading]) -> list[str]:
    """The lines that a sweep's journal adds to the table of its trials, without asking Slurm."""
    journal = Journal(sweep.folder.journal)
    history = History.of(journal.read_new())
    lines: list[str] = []
    if history.is_cancelled:
        lines.append("Cancelled: nothing is started until `trisweep sweep` is given again.")
    elif history.is_paused:
        lines.append("Paused: nothing new is started until `trisweep resume`.")
    elif history.finished and (history.asked or history.why_cut_short([each.outcome for each in trials])):
        lines.append(f"Ended: {history.finished}.")
    # Until a further attempt begins, a trial's own line tells of its last end, such as that it was cancelled.
    again = [each for each in sweep.record.trials if history.course_of(each.trial_id).retry_after is not None]
    if again:
        lines.append(f"Ordered to run again: {listed(list(map(sweep.record.label_of, again)), MOST_NAMED)}.")
    if history.device_seconds:
        hours = history.device_seconds / SECONDS_PER_HOUR
        spent = f"{hours:.3g} device-hours" if hours >= 0.1 else f"{duration(hours * SECONDS_PER_HOUR)} of a device"
        lines.append(f"Spent: {spent} in trials that had ended when the sweep was last taken further.")
    if journal.damaged:
        numbers = ", ".join(map(str, journal.damaged))
        lines.append(f"{journal.path.name}: lines {numbers} cannot be read, and are passed over.")
    return lines


class PlainWatch(PlainProgress):
    """Print what starts and ends, and once a minute the number of trials in each state; for logs and pipes."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._last, self._told = "", float("-inf")

    def show(self, states: Sequence[Reading]) -> None:
        super().show(states)
        counts = outcome_counts(states)
        if counts != self._last or time.monotonic() - self._told >= REPEAT_SECONDS:
            self._last, self._told = counts, time.monotonic()
            self.say(f"{time.strftime('%H:%M:%S')}  {counts}")


def watch(folder: SweepFolder, name: str, console: Console) -> None:
    """Show the sweep in `folder` until all of it has ended, or until Ctrl-C, which ends nothing but this."""
    try:
        is_live = console.is_terminal and not console.is_dumb_terminal
        display = LiveProgress(console, hint=LEAVES, stays=True) if is_live else PlainWatch(console)
        with display as screen:
            while True:
                began = time.monotonic()
                # The record is read anew each time, because a search adds trials to it.
                stored = Sweep.stored_in(folder)
                states = reconcile(_readings(stored, name), WATCHING)
                history = History.kept_in(folder)
                has_ended, may_grow = _has_ended(folder, states, history), bool(history.asked) and not history.finished
                screen.sweep = SweepUnderWay(stored.record.objective, may_grow=may_grow and not has_ended)
                if has_ended and isinstance(screen, LiveProgress):
                    screen.hint = HAS_ENDED
                screen.show(states)
                if has_ended:
                    return
                time.sleep(max(REDRAW_SECONDS, SHARE_OF_TIME * (time.monotonic() - began)))
    except KeyboardInterrupt:
        return


def _readings(sweep: Sweep, name: str) -> list[Reading]:
    """Every trial, and the trainings from the sweep that have not ended."""
    trainings = [run.read() for run in trainings_of(sweep.folder.path.parent, name)]
    return [*sweep.read(), *(each for each in trainings if each.outcome in LIVE)]


def _has_ended(folder: SweepFolder, states: Sequence[Reading], history: History) -> bool:
    trials = [state for state in states if isinstance(state, TrialReading)]
    if holder(folder) is not None or len(trials) < len(states):  # a training that has not ended
        return False
    return history.has_ended([trial.outcome for trial in trials])
