"""What was measured stays with its sweep when a later command makes other points of it.

`trisweep sweep smoke batch.micro_batch_size=4` plans points of which `trisweep sweep smoke` knows nothing, and writes
them into the record in place of those. A measured trial that is a point of the new configuration too, once its layout
is stated in full, is asked for in the journal before, so that status and report go on showing it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from conf.errors import UsageError
from conf.tree import value_at
from sweeps.folder.journal import Asked, Journal
from sweeps.points.axes import Point
from sweeps.points.plan import LAYOUT_KEYS
from sweeps.search.searcher import Proposal
from sweeps.sweep import Sweep
from sweeps.trial import Trial

BECAUSE = "measured by an earlier command"
Draft = Callable[[Proposal], Trial]


class Earlier(NamedTuple):
    """What was measured before and is not in the record of a new command.

    Attributes:
        left_out: ids of those that the new configuration cannot describe; their folders stay.
    """

    kept: tuple[Trial, ...]
    left_out: tuple[str, ...]


def keep_measured(planned: Sweep, draft: Draft) -> Earlier:
    """Have the sweep keep what it has measured, and say what it cannot keep. To be called before the record is written.

    Args:
        planned: with the record of the new command.
        draft: makes the trial of a point under the new configuration.
    """
    earlier = _earlier(planned, draft)
    Journal(planned.folder.journal).append(*(Asked(trial=trial) for trial in earlier.kept))
    return earlier


def _earlier(planned: Sweep, draft: Draft) -> Earlier:
    if not planned.folder.record.exists():
        return Earlier((), ())
    try:
        stored = Sweep.stored_in(planned.folder)
    except UsageError:  # damaged, and about to be written anew
        return Earlier((), ())
    known = {trial.trial_id for trial in planned.record.trials}
    gone = [reading.trial for reading in stored.read() if reading.name not in known and reading.performance]
    found = {trial.trial_id: _as_point_of(trial, draft) for trial in gone}
    has_baseline = any(trial.is_baseline for trial in planned.record.trials)
    kept = [trial for trial in found.values() if trial is not None]
    if has_baseline:
        kept = [trial.model_copy(update={"is_baseline": False}) for trial in kept]
    return Earlier(tuple(kept), tuple(trial_id for trial_id, trial in found.items() if trial is None))


def _as_point_of(trial: Trial, draft: Draft) -> Trial | None:
    """The trial as a point of the new configuration; None where it differs in more than its layout."""
    point = {**trial.point, **_stated_layout(trial, draft)}
    if draft(Proposal(point, "", repeat=trial.repeat)).trial_id != trial.trial_id:
        return None
    return trial.model_copy(update={"point": point, "chosen_because": trial.chosen_because or BECAUSE})


def _stated_layout(trial: Trial, draft: Draft) -> Point:
    """What of the trial's layout the new configuration would make another."""
    assert trial.experiment is not None  # it was measured
    was, drafted = trial.experiment.model_dump(mode="json"), draft(Proposal(trial.point, "")).experiment
    now = drafted.model_dump(mode="json") if drafted else {}
    return {key: value_at(was, key) for key in sorted(LAYOUT_KEYS) if value_at(was, key) != value_at(now, key)}
