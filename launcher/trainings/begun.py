"""The trainings that were begun from sweeps, as their folders tell of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from conf.errors import UsageError
from conf.experiment import Experiment
from sweeps.reading import Reading
from sweeps.trial import Trial
from train_core.trial_folder import TrialFolder

TRAININGS = "train"
"""The folder of all trainings, beside those of the sweeps."""


@dataclass(frozen=True)
class Best:
    """The plan to train.

    Attributes:
        is_measured: by the sweep; else only predicted.
        flops_per_second_per_device: model FLOP/s, measured or predicted.
    """

    trial: Trial
    is_measured: bool
    flops_per_second_per_device: float


@dataclass(frozen=True)
class LongRun:
    """A training folder that holds its experiment.

    Attributes:
        source: the trial of the sweep that its plan was taken from.
        best: None where the folder was there already, and its plan stays.
        schedules: for every time that it was extended, the number of steps that its schedule had before, and the step
            that it had come to.
        extends: whether more steps are asked for than its folder says.
    """

    folder: TrialFolder
    experiment: Experiment
    source: str
    best: Best | None
    schedules: tuple[tuple[int, int], ...] = ()
    extends: bool = False

    def read(self) -> Reading:
        """Read how the training stands now."""
        return Reading(folder=self.folder, experiment=self.experiment)


class TrainingOrigin(NamedTuple):
    """The sweep and the plan from which a training was begun, as its folder says."""

    run: LongRun
    sweep: str
    overrides: list[str]


def read_stored(folder: TrialFolder) -> TrainingOrigin | None:
    """Read what a training's folder says of it; None if the folder holds no training begun from a sweep."""
    try:
        stored = json.loads(folder.trial.read_bytes())
        schedules = tuple((int(steps), int(done)) for steps, done in stored.get("schedules", ()))
        run = LongRun(folder, folder.read_experiment(), str(stored["from_trial"]), None, schedules)
        return TrainingOrigin(run, str(stored["sweep"]), list(stored["overrides"]))
    except (OSError, ValueError, KeyError, TypeError):  # pydantic's complaint is a ValueError
        return None


def trainings_of(output_dir: Path, sweep: str) -> list[LongRun]:
    """Every training that was begun from the sweep, wherever it was measured, by name."""
    folders = [TrialFolder(path) for path in sorted((output_dir / TRAININGS).glob("*"))]
    trainings = [read_stored(folder) for folder in folders]
    return [stored.run for stored in trainings if stored is not None and stored.sweep == sweep]


def training_of(output_dir: Path, sweep: str, name: str) -> LongRun:
    """The training of that name.

    Raises:
        UsageError: there is none.
    """
    trainings = {run.folder.path.name: run for run in trainings_of(output_dir, sweep)}
    if name not in trainings:
        others = f"Known are {', '.join(trainings)}." if trainings else "There is none."
        raise UsageError(f"No training {name} was begun from sweep {sweep} in {output_dir / TRAININGS}", others)
    return trainings[name]
