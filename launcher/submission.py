"""Which trials of a sweep are to run, and the folder of each made ready."""

from __future__ import annotations

from collections.abc import Iterable

from sweeps.submission import read_submission
from sweeps.trial import SweepFolder, SweepRecord, Trial
from train_core.measurement import Outcome
from train_core.trial_folder import TrialFolder


def write_trial(folder: SweepFolder, record: SweepRecord, trial: Trial) -> TrialFolder:
    """Make the trial folder ready for a new attempt: `trial.json` written, results of an earlier attempt forgotten.

    Tokens are cached beside the sweeps, so that sweeps over the same text share them.
    """
    assert trial.experiment is not None
    experiment = trial.experiment.model_dump(mode="json")
    experiment["data"]["cache_dir"] = experiment["data"]["cache_dir"] or str(folder.path.absolute().parent / "tokens")
    trial_folder = folder.trial(trial.trial_id)
    trial_folder.clear_results()
    trial_folder.submission.unlink(missing_ok=True)  # a status asked meanwhile would judge by the old job
    trial_folder.logs.mkdir(parents=True, exist_ok=True)
    trial_folder.write_trial(
        {"experiment": experiment, "trial_id": trial.trial_id, "sweep": record.name, "point": trial.point}
    )
    return trial_folder


def runnable(record: SweepRecord) -> list[Trial]:
    """The trials that were chosen and can exist."""
    return [trial for trial in record.trials if trial.selected and trial.infeasible_reason is None]


KEPT = frozenset({Outcome.COMPLETED, Outcome.OUT_OF_MEMORY, Outcome.INFEASIBLE, Outcome.FAILED, Outcome.TIMED_OUT})
"""Outcomes that say something about the trial; the others say something about the machine, and are tried again."""

RETRIED = frozenset({Outcome.FAILED, Outcome.TIMED_OUT, Outcome.INFEASIBLE})
"""Outcomes that `retry_failed` tries again."""


def to_run(folder: SweepFolder, trials: Iterable[Trial], *, retry_failed: bool, max_resubmits: int) -> list[Trial]:
    """Those of `trials` without a result that is to be kept.

    Args:
        max_resubmits: how often a trial that lost its node is tried again; `retry_failed` overrides it.
    """
    return [trial for trial in trials if _wants_run(folder.trial(trial.trial_id), retry_failed, max_resubmits)]


def _wants_run(folder: TrialFolder, retry_failed: bool, max_resubmits: int) -> bool:
    measurement, submission = folder.read_measurement(), read_submission(folder)
    if measurement is None:
        return True
    if measurement.outcome is Outcome.NODE_FAILED:
        return retry_failed or submission is None or submission.lost_nodes < max_resubmits
    return measurement.outcome not in KEPT or (retry_failed and measurement.outcome in RETRIED)


def next_attempt(folder: TrialFolder) -> tuple[int, int]:
    """Number of the coming attempt, and how many before it lost a node. Call before results are cleared."""
    submission, measurement = read_submission(folder), folder.read_measurement()
    if submission is None:
        return 1, 0
    lost = measurement is not None and measurement.outcome is Outcome.NODE_FAILED
    return submission.attempt + 1, submission.lost_nodes + lost
