"""`trisweep status --watch`: how a sweep stands, drawn again every few seconds until it has ended or Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console

from cli.output.progress import LiveProgress, PlainProgress, SweepUnderWay, outcome_counts
from launcher.folder_lock import holder
from launcher.slurm.answers import WATCHING
from launcher.state import reconcile
from launcher.trainings import trainings_of
from sweeps.folder.history import History
from sweeps.reading import Reading, TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from train_core.measurement import LIVE

LEAVES = "Ctrl-C leaves; the sweep goes on."
HAS_ENDED = "The sweep has ended."
REDRAW_SECONDS = 2.0
SHARE_OF_TIME = 5
"""Reading thousands of folders takes a while, and is to take at most one second in so many."""

REPEAT_SECONDS = 60.0


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
        with _screen(console) as screen:
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


def _screen(console: Console) -> LiveProgress | PlainWatch:
    is_live = console.is_terminal and not console.is_dumb_terminal
    return LiveProgress(console, hint=LEAVES, stays=True) if is_live else PlainWatch(console)


def _readings(sweep: Sweep, name: str) -> list[Reading]:
    """Every trial, and the trainings from the sweep that have not ended."""
    trainings = [run.read() for run in trainings_of(sweep.folder.path.parent, name)]
    return [*sweep.read(), *(each for each in trainings if each.outcome in LIVE)]


def _has_ended(folder: SweepFolder, states: Sequence[Reading], history: History) -> bool:
    trials = [state for state in states if isinstance(state, TrialReading)]
    if holder(folder) is not None or len(trials) < len(states):  # a training that has not ended
        return False
    return history.has_ended([trial.outcome for trial in trials])
