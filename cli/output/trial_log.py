"""A trial's log on a terminal: all that is there, or all that comes until the trial ends."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

from cli.output.console import complaints, console, shown_path
from cli.output.state_table import duration
from conf.errors import UsageError
from conf.visible import visible
from launcher.slurm.query import WATCHING
from launcher.slurm.reconcile import reconcile
from results.render.units import seconds, tflops
from sweeps.log_choice import log_file
from sweeps.reading import Reading
from train_core.trial.logs import GrowingFile
from train_core.trial.measurement import LIVE, StepMetrics

POLL_SECONDS = 1.0


def print_log(reading: Reading, rank: int | None) -> None:
    """Print the log, and then the steps, which this package's trainer writes into a file of their own.

    Raises UsageError where the trial has written no log, and there are no steps of it either.
    """
    if log_file(reading, rank) is None and (rank is not None or not _steps_beside(reading)):
        waits = reading.outcome in LIVE
        remedy = "Wait for it with -f." if waits else "`trisweep status` says why."
        raise UsageError(f"{reading.title} is {reading.outcome or 'left out'} and has written no log", remedy)
    _Following(rank).show(reading)


def follow_log(reading: Reading, rank: int | None) -> None:
    """Print the log and each step, through requeues and new attempts, until the trial has ended or Ctrl-C."""
    following = _Following(rank)
    try:
        while True:
            (reading,) = reconcile([replace(reading, job=None)], WATCHING)
            following.show(reading)
            if reading.outcome is None or reading.outcome.is_final:
                break
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        complaints.print(f"\n{reading.title} goes on.")
        return
    cause = f": {reading.cause}" if reading.cause else ""
    complaints.print(f"{reading.title} ended: {reading.outcome or 'LEFT OUT'}{cause}", style="bold")


class _Following:
    """The place in the log of one trial up to which it has been printed."""

    def __init__(self, rank: int | None) -> None:
        self._rank = rank
        self._file: GrowingFile | None = None
        self._job: object = None
        self._last_step = 0
        self._waits = False

    def show(self, reading: Reading) -> None:
        path = self._path(reading)
        if path is None:
            if not self._waits and reading.outcome in LIVE and not reading.steps:
                self._waits = True
                complaints.print(f"{reading.title} is {reading.outcome} and has written no log yet.")
        elif self._file is None or path != self._file.path:
            self._file = GrowingFile(path)
            _say(reading, path)
        for part in self._file.news() if self._file else ():
            sys.stdout.write(visible(part) if console.is_terminal else part)
        for step in _steps_beside(reading):
            if step.step > self._last_step:
                _print_step(step)
        # A job that was requeued goes on from a checkpoint, and takes some steps again.
        self._last_step = reading.steps[-1].step if reading.steps else 0
        sys.stdout.flush()

    def _path(self, reading: Reading) -> Path | None:
        """The file that was chosen stays, as ranks speak by turns, until another job or a failure matters more."""
        job = (reading.submission, reading.failing_rank)
        path = self._file.path if self._file else None
        if path is None or job != self._job or not (path.exists() and path.stat().st_size > 0):
            self._job = job
            return log_file(reading, self._rank)
        return path


def _steps_beside(reading: Reading) -> tuple[StepMetrics, ...]:
    """The steps that the log does not hold: another program has printed its own."""
    return () if reading.is_of_program else reading.steps


def _say(reading: Reading, path: Path) -> None:
    ago = duration(time.time() - path.stat().st_mtime)
    complaints.print(f"==> {reading.title} {reading.outcome}: {shown_path(path)} (written {ago} ago) <==", style="bold")


def _print_step(step: StepMetrics) -> None:
    rate = tflops(step.model_flops_per_second_per_device)
    sys.stdout.write(
        f"step {step.step}/{step.num_steps}: loss {step.loss:.4f}, {seconds(step.step_seconds)} s, {rate} TFLOPS\n"
    )
