"""What a person has said and their program is not told: keys of points, which it would run twice, and a Python."""

from __future__ import annotations

from collections.abc import Hashable

from conf.plan.experiment import Experiment
from conf.plan.trainer_call import JOB_NAMES, call_of
from sweeps.labels import dotted_value
from sweeps.trial import SweepRecord, Trial


def untold_keys(record: SweepRecord) -> list[str]:
    """The keys in which points differ that start another program with the same words, files and variables."""
    groups: dict[Hashable, list[tuple[Trial, Experiment]]] = {}
    for trial in record.trials:
        if trial.selected and not trial.stage and trial.experiment and not trial.experiment.trainer.is_own:
            groups.setdefault(_start_of(trial.experiment), []).append((trial, trial.experiment))
    return sorted({key for trials in groups.values() for key in _differing_keys(trials)})


def starts_without_python(record: SweepRecord) -> bool:
    """True if trainer.python was given for programs that are started by their own words, none of which asks for it."""
    trainers = [trial.experiment.trainer for trial in record.trials if trial.selected and trial.experiment]
    return any(
        trainer.python is not None
        and trainer.start != "torchrun"
        and not any("{python}" in word for word in (*trainer.prefix, *(trainer.command or ())))
        for trainer in trainers
    )


def _differing_keys(trials: list[tuple[Trial, Experiment]]) -> set[str]:
    keys = {key for trial, _ in trials for key in trial.point}
    return {key for key in keys if len({dotted_value(experiment, key) for _, experiment in trials}) > 1}


def _start_of(experiment: Experiment) -> Hashable:
    """All that the program finds when it is started, but for its place."""
    trainer = experiment.trainer
    call = call_of(trainer, experiment, {**dict.fromkeys(JOB_NAMES, "0"), "trial_folder": "."})
    how = (trainer.start, trainer.prefix, trainer.python, trainer.working_dir, experiment.cluster.name)
    shape = (experiment.parallel.world_size, experiment.num_nodes)
    return (*how, *shape, call.words, *(tuple(sorted(part.items())) for part in (call.files, call.environment)))
