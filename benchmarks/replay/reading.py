"""A trial of a replay, read as if its folder held what the made-up machine measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from conf.plan.experiment import Experiment
from sweeps.folder.submission import Submission
from sweeps.reading import TrialReading
from sweeps.trial import Trial
from train_core.measurement import Measurement, Outcome
from train_core.trial_folder import TrialFolder

NOWHERE = TrialFolder(Path("replayed"))


@dataclass(frozen=True, kw_only=True)
class ReplayedReading(TrialReading):
    """The state of a replayed trial, for which nothing is read from a disk.

    Attributes:
        left: what the machine measured; None while the trial runs.
    """

    left: Measurement | None

    @cached_property
    def submission(self) -> Submission | None:
        return None

    @cached_property
    def _stored_measurement(self) -> Measurement | None:
        return self.left

    @cached_property
    def _listing(self) -> frozenset[str]:
        return frozenset()

    @cached_property
    def _judgement(self) -> tuple[Outcome | None, str]:
        if self.left is None:
            return Outcome.RUNNING, ""
        return self.left.outcome, self.left.cause


def replayed_reading(trial: Trial, ended: Measurement | None) -> ReplayedReading:
    """The reading of a trial that ended like this, or that runs."""
    return ReplayedReading(folder=NOWHERE, experiment=trial.experiment, trial=trial, left=ended)


def unplanned_trial(trial_id: str, experiment: Experiment) -> Trial:
    """A trial of an experiment that no sweep has planned."""
    return Trial(
        trial_id=trial_id,
        point={},
        experiment=experiment,
        selected=True,
    )
