"""The tokens of a sweep's trials, which are made before the first trial starts."""

from __future__ import annotations

from pathlib import Path

from conf.experiment import Experiment
from sweeps.trial import SweepFolder, SweepRecord


def prepare_tokens(folder: SweepFolder, record: SweepRecord) -> None:
    """Prepare the tokens of all chosen trials, so that bad data stops the sweep at once.

    Raises:
        ConfigError: the data is missing, empty or not what the configuration says it is.
    """
    from train_core.data.tokens import prepare

    chosen = [trial.experiment for trial in record.trials if trial.selected and trial.experiment]
    chosen = [each for each in chosen if each.trainer.is_own]  # other programs have data of their own
    # Trials mostly differ in layout or seed alone, and then share their tokens.
    for experiment in {_what_tokens_depend_on(each): each for each in chosen}.values():
        configured = experiment.data.cache_dir
        prepare(experiment, Path(configured).expanduser() if configured else folder.tokens)


def _what_tokens_depend_on(experiment: Experiment) -> tuple[object, ...]:
    """Of two experiments that are equal in this, the same tokens are made and the same complaints are raised."""
    training = experiment.training
    evaluated = training.evaluate_every and training.num_evaluation_batches * experiment.batch.global_batch_size
    return experiment.data, experiment.model, evaluated
