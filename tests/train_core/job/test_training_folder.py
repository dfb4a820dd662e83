"""Which folder a single training works in, and when it extends a shorter one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conf.errors import UsageError
from tests.messages import refused
from tests.train_core.conftest import ExperimentOf
from train_core.checkpoints.checkpoint_folder import Facts, draft_of, publish
from train_core.job.training_folder import StoredTraining, training_in


def begun(root: Path, experiment_of: ExperimentOf, num_steps: int, done: int, **values: object) -> StoredTraining:
    """A training that has come to a checkpoint."""
    training = asked(root, experiment_of, num_steps, **values)
    training.folder.write_trial(training.content())
    draft = draft_of(training.folder.checkpoints, done)
    draft.mkdir(parents=True)
    (draft / ".metadata").touch()
    model = training.experiment.model
    publish(draft.parent, Facts(step=done, num_updates=done, label="", model=model, loss_scale={}, training={}))
    return training


def asked(root: Path, experiment_of: ExperimentOf, num_steps: int, **values: object) -> StoredTraining:
    dotted = {"checkpoint.every_steps": 10, "training.num_steps": num_steps}
    return training_in(root, experiment_of(dotted | {key.replace("__", "."): value for key, value in values.items()}))


def test_more_steps_extend_a_training_and_are_kept_with_the_schedule_of_before(
    tmp_path: Path, experiment_of: ExperimentOf
) -> None:
    first = begun(tmp_path, experiment_of, 300, done=300)
    longer = asked(tmp_path, experiment_of, 310)
    assert longer.folder.path == first.folder.path
    assert (longer.done, longer.schedules) == (300, ((300, 300),))
    longer.folder.write_trial(longer.content())
    again = asked(tmp_path, experiment_of, 310)
    assert (again.folder.path, again.schedules) == (first.folder.path, ((300, 300),))
    longest = asked(tmp_path, experiment_of, 400)
    assert longest.schedules == ((300, 300), (310, 300))


def test_the_command_of_before_is_told_that_its_training_was_extended(
    tmp_path: Path, experiment_of: ExperimentOf
) -> None:
    begun(tmp_path, experiment_of, 300, done=300)
    longer = asked(tmp_path, experiment_of, 310)
    longer.folder.write_trial(longer.content())
    with refused(UsageError):
        asked(tmp_path, experiment_of, 300)


@pytest.mark.parametrize(
    "other", [{"training__seed": 7}, {"training__learning_rate": 0.5}, {"checkpoint__every_steps": 5}]
)
def test_a_training_that_differs_in_more_than_its_steps_has_a_folder_of_its_own(
    other: dict[str, object], tmp_path: Path, experiment_of: ExperimentOf
) -> None:
    first = begun(tmp_path, experiment_of, 300, done=300)
    longer = asked(tmp_path, experiment_of, 310, **other)
    assert longer.folder.path != first.folder.path
    assert (longer.done, longer.schedules) == (0, ())


def test_fewer_steps_begin_anew_and_so_does_what_was_never_saved(tmp_path: Path, experiment_of: ExperimentOf) -> None:
    first = begun(tmp_path, experiment_of, 300, done=10)
    assert asked(tmp_path, experiment_of, 200).folder.path != first.folder.path
    unsaved = {"checkpoint__every_steps": None}
    saved_nothing = asked(tmp_path, experiment_of, 50, **unsaved)
    saved_nothing.folder.write_trial(saved_nothing.content())
    assert asked(tmp_path, experiment_of, 60, **unsaved).folder.path != saved_nothing.folder.path


def test_a_folder_that_cannot_be_read_is_passed_over(tmp_path: Path, experiment_of: ExperimentOf) -> None:
    first = begun(tmp_path, experiment_of, 300, done=300)
    for content in ("", "{", json.dumps({"experiment": {}}), json.dumps([1])):
        first.folder.trial.write_text(content)
        assert asked(tmp_path, experiment_of, 310).done == 0
