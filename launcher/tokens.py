"""The tokens of a sweep's trials, which are made before the first trial starts."""

from __future__ import annotations

from pathlib import Path

from sweeps.trial import SweepFolder, SweepRecord


def prepare_tokens(folder: SweepFolder, record: SweepRecord) -> None:
    """Prepare the tokens of all chosen trials, so that bad data stops the sweep at once.

    Raises:
        ConfigError: the data is missing, empty or not what the configuration says it is.
    """
    from train_core.data.tokens import prepare

    chosen = [trial.experiment for trial in record.trials if trial.selected and trial.experiment]
    chosen = [each for each in chosen if each.trainer.is_own]  # other programs have data of their own
    # Trials mostly differ in layout alone, and then share their tokens.
    distinct = {(each.data, each.model, each.training, each.batch.global_batch_size): each for each in chosen}
    for experiment in distinct.values():
        configured = experiment.data.cache_dir
        prepare(experiment, Path(configured).expanduser() if configured else folder.tokens)
