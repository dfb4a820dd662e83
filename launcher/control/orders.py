"""A person's orders to a sweep that another process may be carrying out: each is an entry of its journal.

Overrides whose values no record keeps have a file of their own: whoever goes on with the sweep needs them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json, to_json

from conf.credentials import has_hidden_variables, overrides_for_records
from conf.errors import UsageError
from conf.nearest import listed
from conf.overrides import Overrides
from launcher.control.attempts import RETRIED_BY_ORDER, may_run_again, submission_time_of
from launcher.control.rules import Rules
from sweeps.folder.journal import Asked, Begun, Cancelled, History, Journal, Paused, Resumed, Retried
from sweeps.ranking.points import MeasuredPoint, measured_points
from sweeps.ranking.rounds import next_repeat
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, Trial, repeat_id
from train_core.trial.atomic import write_atomically
from train_core.trial.measurement import Fault

MOST_NAMED = 5


@dataclass(frozen=True)
class SweepOrders:
    """The orders that a person gives with `trisweep sweep`, beside the points.

    Attributes:
        overrides: as they were typed.
        configuration: all that was composed of them, as plain values.
    """

    overrides: Sequence[str] = ()
    configuration: Mapping[str, Any] = field(default_factory=dict)
    retry_failed: bool = False
    remeasure: bool = False


@dataclass(frozen=True)
class SweepCommand:
    """A sweep as a person's command asks for it.

    Attributes:
        sweep: with the record of this command alone.
    """

    sweep: Sweep
    rules: Rules
    orders: SweepOrders = SweepOrders()


def pause(sweep: Sweep) -> bool:
    """Start nothing new from now on; False where that was so already."""
    return _set_paused(sweep, Paused())


def resume(sweep: Sweep) -> bool:
    """Start new trials again; False where nothing kept them from it."""
    return _set_paused(sweep, Resumed())


def _set_paused(sweep: Sweep, entry: Paused | Resumed) -> bool:
    journal = Journal(sweep.folder.journal)
    if History.of(journal.read_new()).is_paused == isinstance(entry, Paused):
        return False
    journal.append(entry)
    return True


def retry_failed_trials(sweep: Sweep) -> list[str]:
    """Have every trial that is still asked for and failed, timed out or lost its node run again; return their ids."""
    return retry(sweep, [each for each in failed_trials(sweep.read()) if each.trial.selected])


def failed_trials(readings: Sequence[TrialReading]) -> list[TrialReading]:
    """The trials that failed, timed out or lost their node, those of earlier commands among them."""
    return [each for each in readings if each.measurement and each.measurement.outcome in RETRIED_BY_ORDER]


def retry(sweep: Sweep, readings: Sequence[TrialReading]) -> list[str]:
    """Have the trials run again once nobody works on them.

    Raises:
        UsageError: one is measured, which only a further run beside it can be again.
    """
    if measured := [each.name for each in readings if each.performance]:
        verb = "is" if len(measured) == 1 else "are"
        remedy = "The sweep's own command measures points once more with --remeasure; what is there stays."
        raise UsageError(f"{listed(measured, MOST_NAMED)} {verb} measured, and what was measured is kept", remedy)
    # With the attempt that is meant, so that the order is spent as soon as a later one begins.
    entries = (Retried(trial_id=each.name, submitted=submission_time_of(each)) for each in readings)
    Journal(sweep.folder.journal).append(*entries)
    return [each.name for each in readings]


def give_up_retries(sweep: Sweep, readings: Sequence[TrialReading]) -> list[str]:
    """Have those trials that ended, as with their node, not run again by themselves, and return their ids."""
    # Whatever the sweep's own limit is.
    may_run = (each for each in readings if may_run_again(each, sys.maxsize, retry_cancelled=False))
    retried = [each for each in may_run if each.measurement is not None]
    Journal(sweep.folder.journal).append(*(Cancelled(trial_id=each.name) for each in retried))
    return [each.name for each in retried]


def remeasure_finished(sweep: Sweep, wants: Callable[[Trial], bool]) -> list[str]:
    """Have every point that was measured and is wanted run once more, and return the ids of the further trials.

    A point with a further run that was ordered before and has not been made is left at that one.
    """
    readings = sweep.read()
    # Still to be run, as also what a person ended: the next command takes it up again.
    repeats = (each for each in readings if each.trial.repeat and each.trial.selected)
    open_ones = {each.trial.mark for each in repeats if not (end := each.measurement) or end.why is Fault.CANCELLED}
    # What several versions of the trainer measured is several points, and one to be measured by the present version.
    points = {point.middle.trial.mark: point for point in measured_points(readings)}
    wanted = [each for mark, each in points.items() if mark not in open_ones and wants(each.middle.trial)]
    again = [_repetition(sweep, point, readings) for point in wanted]
    Journal(sweep.folder.journal).append(*(Asked(trial=trial) for trial in again))
    return [trial.trial_id for trial in again]


def _repetition(sweep: Sweep, point: MeasuredPoint, readings: Sequence[TrialReading]) -> Trial:
    repeat = next_repeat(point.middle, readings)
    first = min((run.trial for run in point.runs), key=lambda trial: trial.repeat)
    name = repeat_id(first.trial_id.removesuffix(repeat_id("", first.repeat)), repeat)
    said: dict[str, object] = {"trial_id": name, "repeat": repeat, "is_baseline": point.is_baseline}
    said |= {"selected": True, "role": "asked", "asked_by": " ".join(sweep.record.overrides)}
    return first.model_copy(update=said | {"chosen_because": "a person wants it measured again"})


def keep_private_overrides(folder: SweepFolder, overrides: Sequence[str]) -> None:
    """Write down those with hidden values. The sweep's folder is private, as are the scripts of its jobs in it."""
    private = [text for text in overrides if overrides_for_records([text]) != (text,)]
    if private:
        write_atomically(folder.private, to_json(private).decode())
    else:
        folder.private.unlink(missing_ok=True)


def overrides_at_begin(folder: SweepFolder, begun: Begun) -> Overrides:
    """The overrides with which the sweep was begun, with their values.

    Raises:
        UsageError: the file that holds the hidden ones is gone or damaged.
    """
    stored = list[str]()
    with suppress(OSError, ValueError):
        kept = from_json(folder.private.read_bytes())
        stored = [text for text in kept if isinstance(text, str)] if isinstance(kept, list) else []
    whole = dict(zip(overrides_for_records(stored), stored, strict=True))
    texts = [whole.get(text, text) for text in begun.overrides]
    if lost := [text for text in texts if has_hidden_variables(text)]:
        problem = f"{folder.private} no longer holds the hidden values of {' '.join(lost)}"
        raise UsageError(problem, "Give the command of the sweep again.")
    return Overrides.parse(texts)
