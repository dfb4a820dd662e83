"""The length of each training, and on what: losses are compared after equal training alone.

A sweep that varies what decides its losses is refused (`sweeps.points.objectives.Comparison`). Two ways are left by
which they may differ: a program of one's own ends well before its last step, and trials that an earlier command left
had another configuration. Both are shown, without a place among the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from conf.plan.experiment import Experiment
from conf.units import count_of
from sweeps.reading import TrialReading


class TrainedOn(NamedTuple):
    """What a trial has trained on.

    Attributes:
        steps: after which its last loss stands.
    """

    experiment: Experiment
    steps: int

    @property
    def tokens_per_step(self) -> int:
        return self.experiment.batch.global_batch_size * self.experiment.model.seq_length

    @property
    def tokens(self) -> int:
        return self.steps * self.tokens_per_step


def trained_otherwise(points: Mapping[str, Sequence[TrialReading]]) -> dict[str, str]:
    """Why losses say nothing beside those of the longest training of the present configuration, by point.

    Args:
        points: the runs of each, all measured.
    """
    trainings = [(each.trial.role != "kept", _training_of(each)) for runs in points.values() for each in runs]
    present = [training for is_present, training in trainings if is_present]
    longest = max(present or [training for _, training in trainings], key=lambda each: each.tokens, default=None)
    if longest is None:
        return {}
    found = {name: (_difference(_training_of(each), longest) for each in runs) for name, runs in points.items()}
    said = {name: next(filter(None, differences), "") for name, differences in found.items()}
    return {name: difference for name, difference in said.items() if difference}


def _training_of(reading: TrialReading) -> TrainedOn:
    """Its steps; all of them where the program ended less than the distance of its records before the last."""
    experiment, performance = reading.planned, reading.performance
    planned = experiment.training.num_steps
    recorded = performance.recorded_steps if performance else []
    if experiment.trainer.is_own or not recorded:
        return TrainedOn(experiment, planned)
    before, last = ([0, *recorded])[-2:]
    return TrainedOn(experiment, planned if last + (last - before) > planned else last)


def _difference(one: TrainedOn, other: TrainedOn) -> str:
    """What the first training has different, in words; empty where the losses of both may be compared."""
    data, others = (each.experiment.data.model_copy(update={"cache_dir": None}) for each in (one, other))
    if data != others:
        return "on other data"
    model, others_model = one.experiment.model, other.experiment.model
    if model.vocab_size != others_model.vocab_size:
        return f"with model.vocab_size={model.vocab_size}"
    if model.seq_length != others_model.seq_length:
        return f"with model.seq_length={model.seq_length}"
    # Tokens are rounded up to a whole step.
    if abs(one.tokens - other.tokens) <= max(one.tokens_per_step, other.tokens_per_step):
        return ""
    if one.tokens_per_step == other.tokens_per_step:
        return f"after {count_of(one.steps, 'step')} in place of {other.steps}"
    return f"after {one.tokens:,} tokens in place of {other.tokens:,}"
