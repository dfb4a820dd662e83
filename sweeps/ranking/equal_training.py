"""Trainings whose losses may be compared: after as many tokens of the same data, judged by the same kind of loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from conf.plan.experiment import Experiment
from conf.units import count_of
from sweeps.reading import TrialReading

Key = TypeVar("Key", str, int)


class TrainedOn(NamedTuple):
    """What a trial has trained on, and the steps after which its last loss stands."""

    experiment: Experiment
    steps: int

    @property
    def tokens_per_step(self) -> int:
        return self.experiment.batch.global_batch_size * self.experiment.model.seq_length

    @property
    def tokens(self) -> int:
        return self.steps * self.tokens_per_step


def trained_otherwise(points: Mapping[Key, Sequence[TrialReading]], *, by_loss: bool = True) -> dict[Key, str]:
    """Why losses say nothing beside those of the longest training of the present configuration, by point.

    A later stage's figures are compared for whatever lengths of training the present configuration asks for, and those
    of a script as they are: how long it trains is one of its own values.
    """
    if all(each.planned.trainer.log.figures for runs in points.values() for each in runs):
        return {}
    trainings = [(each.trial.role != "kept", _training_of(each)) for runs in points.values() for each in runs]
    present = [training for is_present, training in trainings if is_present]
    by_length = sorted(present or [training for _, training in trainings], key=lambda each: each.tokens)
    sought = by_length[-1:] if by_loss else by_length

    def difference(reading: TrialReading) -> str:
        """The difference to the longest one, where there is one to each."""
        found = [_difference(_training_of(reading), each, by_loss=by_loss) for each in sought]
        return found[-1] if all(found) else ""

    said = {name: next(filter(None, map(difference, runs)), "") for name, runs in points.items()}
    return {name: why for name, why in said.items() if why}


def _training_of(reading: TrialReading) -> TrainedOn:
    """Its steps; all of them where the program ended less than the distance of its records before the last."""
    experiment, planned = reading.planned, reading.planned.training.num_steps
    recorded = reading.performance.recorded_steps if reading.performance else []
    if experiment.trainer.is_own or not recorded:
        return TrainedOn(experiment, planned)
    before, last = ([0, *recorded])[-2:]
    return TrainedOn(experiment, planned if last + (last - before) > planned else last)


def _difference(one: TrainedOn, other: TrainedOn, *, by_loss: bool) -> str:
    """What the first training has different, in words; empty where what both learned may be compared."""
    if by_loss and one.experiment.has_held_out_loss != other.experiment.has_held_out_loss:
        return f"judged by its {'held-out' if one.experiment.has_held_out_loss else 'training'} loss"
    # The loss of a set that is held out tells how good another mixture is, which the own loss does not.
    alike: dict[str, object] = {"cache_dir": None} | ({} if by_loss else {"mixture": {}})
    data, others = (each.experiment.data.model_copy(update=alike) for each in (one, other))
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
