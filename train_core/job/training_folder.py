"""The folder of a single training: its own, or that of a shorter one which it extends. No torch.

A training with checkpoints that is asked for more steps goes on where the shorter one ended. Its learning rates up to
there were those of the shorter schedule, which `trial.json` keeps and the trainer's command says.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

from conf.compose.complaints import validate
from conf.compose.tree import with_values
from conf.errors import TrisweepError, UsageError
from conf.plan.experiment import Experiment
from conf.types.schema import TrainingPlan
from conf.units import count_of
from train_core.checkpoints.checkpoint_folder import last_whole, step_of
from train_core.optimizers.learning_rate import learning_rate_at
from train_core.trial.folder import TrialFolder

NUM_STEPS = "training.num_steps"


@dataclass(frozen=True, slots=True)
class StoredTraining:
    """A training in its folder.

    Attributes:
        done: the step of its last whole checkpoint; 0 where there is none.
        schedules: for every time that it was extended, the number of steps that its schedule had before, and the step
            that it had come to.
    """

    folder: TrialFolder
    experiment: Experiment
    done: int
    schedules: tuple[tuple[int, int], ...]

    def content(self) -> dict[str, Any]:
        content: dict[str, Any] = {"experiment": self.experiment.model_dump(mode="json")}
        return content | ({"schedules": [list(each) for each in self.schedules]} if self.schedules else {})


def training_in(root: Path, experiment: Experiment) -> StoredTraining:
    """The training as it stands below `root`; nothing is written.

    Raises:
        UsageError: its folder holds the same training with more steps.
    """
    own = root / f"{experiment.model.name}-{experiment.label}-{experiment.fingerprint}"
    if experiment.checkpoint.every_steps is None:  # nothing to go on from
        return StoredTraining(TrialFolder(own), experiment, 0, ())
    alike = root.glob(f"{escape(f'{experiment.model.name}-{experiment.label}-')}*/trial.json")
    begun = [found for path in sorted(alike) if (found := _begun(path, experiment)) is not None]
    same = [each for each in begun if each.experiment.training.num_steps == experiment.training.num_steps]
    shorter = [each for each in begun if each.experiment.training.num_steps < experiment.training.num_steps]
    if same:
        return same[0]
    # A folder that was extended keeps its name, so that the command of before would find the longer training there.
    if longer := next((each for each in begun if each.folder.path == own), None):
        steps = longer.experiment.training.num_steps
        remedy = f"Give {NUM_STEPS}={steps} or more, or another output_dir."
        raise UsageError(f"{own} holds this training extended to {count_of(steps, 'step')}", remedy)
    extended = max((each for each in shorter if each.done), key=lambda each: each.done, default=None)
    if extended is None:
        return StoredTraining(TrialFolder(own), experiment, 0, ())
    before = (extended.experiment.training.num_steps, extended.done)
    return StoredTraining(extended.folder, experiment, extended.done, (*extended.schedules, before))


def extension_lines(schedules: Sequence[tuple[int, int]], plan: TrainingPlan) -> list[str]:
    """The lines for a person about a training that was extended, and had other learning rates until then."""
    return [
        f"Extended at step {done}: up to there learning rates fell as in a training of {count_of(before, 'step')}, so"
        f" that its losses are not those of {plan.num_steps} steps from the start."
        for before, done in schedules
        # Schedules that part do so for good: `constant` and the stable part of `wsd` know nothing of the end.
        if learning_rate_at(done, plan) != learning_rate_at(done, plan.model_copy(update={"num_steps": before}))
    ]


def _begun(path: Path, experiment: Experiment) -> StoredTraining | None:
    """The training of a `trial.json`; None where it cannot be read or differs in more than the number of steps."""
    folder = TrialFolder(path.parent)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, TrisweepError):
        stored, content = folder.read_experiment(), json.loads(path.read_text())
        tree = experiment.model_dump(mode="json")
        alike = validate(Experiment, with_values(tree, {NUM_STEPS: stored.training.num_steps}))
        if alike.fingerprint == stored.fingerprint:
            last = last_whole(folder.checkpoints, warns=False)
            schedules = tuple((int(steps), int(done)) for steps, done in content.get("schedules", ()))
            return StoredTraining(folder, stored, step_of(last) if last else 0, schedules)
    return None
