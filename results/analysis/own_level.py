"""What finished trials of a sweep say of points that are predicted only: the level of this trainer on this cluster."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from results.analysis.findings.comparable import pairs, timed_pairs
from sweeps.practice import load_levels, own_level, practice_of_own
from sweeps.reading import TrialReading
from sweeps.trial import Trial


def at_own_level(trial: Trial, results: Sequence[TrialReading]) -> Trial:
    """The trial as it is predicted once these have shown how long steps take, over what was predicted.

    It stays as it is where none of them ran this trainer on this cluster, or the cluster's constants were fitted to
    runs already.
    """
    experiment, trainer = trial.planned, trial.predicted.implementation
    efficiency = experiment.cluster.efficiency
    alike = [
        pair
        for pair in timed_pairs(pairs(results))
        if pair.reading.planned.cluster.name == experiment.cluster.name and pair.predicted.implementation == trainer
    ]
    if not alike or experiment.mixed is not None or (efficiency.runs is not None and efficiency.runs.trainers):
        return trial
    taken = []
    for pair in alike:
        earlier = own_level(pair.reading.planned, trainer)
        plain = pair.predicted.step_seconds / (earlier.factor if earlier else 1.0)
        taken.append(log(pair.measured.step_seconds / plain))
    level = load_levels()[practice_of_own(experiment)].own(taken)
    planned_at = own_level(experiment, trainer)
    own = efficiency.model_copy(update={"levels": {**efficiency.levels, trainer: level}})
    moved = experiment.model_copy(update={"cluster": experiment.cluster.model_copy(update={"efficiency": own})})
    # What was predicted is kept, whatever the cost model says today: only the level is another one.
    predicted = trial.predicted.times(level.factor / (planned_at.factor if planned_at else 1.0))
    return trial.model_copy(update={"experiment": moved, "estimate": predicted})
