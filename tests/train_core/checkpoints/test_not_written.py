"""A full disk ends a training with the cause and what to do; the same command goes on once there is room."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from safetensors import SafetensorError

from conf.errors import TrainingError, UsageError
from tests.messages import refused
from tests.train_core.conftest import ALONE, ExperimentOf
from train_core.checkpoints import checkpoint, export
from train_core.checkpoints.checkpoint import Checkpoints
from train_core.checkpoints.checkpoint_folder import Facts, draft_of, last_whole, path_of, publish
from train_core.checkpoints.writer import Summed
from train_core.training.trainer import Trainer

SMALL = {"model.num_layers": 1, "batch.global_batch_size": 2}


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The system refuses what a checkpoint writes after its first 100,000 bytes, until the patch is undone."""
    room, write = [100_000], Summed.write

    def refuse(item: Summed, content: Any) -> int:
        room[0] -= memoryview(content).nbytes
        if room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(item, content)

    monkeypatch.setattr(Summed, "write", refuse)
    return monkeypatch


def test_a_full_disk_is_one_message_and_leaves_room_for_others(
    full_disk: pytest.MonkeyPatch, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    trainer, folder = Trainer(experiment_of(SMALL), ALONE, tmp_path / "tokens"), tmp_path / "checkpoints"
    checkpoints = trainer.checkpoints(folder)
    checkpoints.save(1)
    with refused(UsageError):
        checkpoints.wait()
    assert not draft_of(folder, 1).exists()
    assert last_whole(folder) is None
    full_disk.undo()
    checkpoints.save(1)
    checkpoints.wait()
    assert last_whole(folder) == path_of(folder, 1)
    assert trainer.checkpoints(folder).restore() == 1


def diverge_after_saving(checkpoints: Checkpoints) -> None:
    with checkpoints:
        checkpoints.save(1)
        raise TrainingError("it diverged", "Mend it.")


def publish_late(folder: Path, facts: Facts) -> None:
    time.sleep(0.1)
    publish(folder, facts)


@pytest.mark.parametrize("is_full", [False, True])
def test_a_training_that_diverges_keeps_the_checkpoint_that_is_being_written(
    is_full: bool,
    full_disk: pytest.MonkeyPatch,
    experiment_of: ExperimentOf,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where that fails too, the divergence stays the cause."""
    trainer, folder = Trainer(experiment_of(SMALL), ALONE, tmp_path / "tokens"), tmp_path / "checkpoints"
    if not is_full:
        full_disk.undo()
    full_disk.setattr(checkpoint, "publish", publish_late)
    with refused(TrainingError):
        diverge_after_saving(trainer.checkpoints(folder))
    assert last_whole(folder) == (None if is_full else path_of(folder, 1))
    assert ("could not write the checkpoint of step 1" in caplog.text) is is_full


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("I/O error")])
def test_an_export_onto_a_full_disk_is_one_message_and_leaves_nothing(
    error: Exception, experiment_of: ExperimentOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library that writes the weights has an error of its own for what the system refuses."""
    with Trainer(experiment_of(SMALL), ALONE, tmp_path / "tokens").checkpoints(tmp_path / "checkpoints") as checkpoints:
        checkpoints.save(1)
    (tmp_path / "exported").mkdir()
    monkeypatch.setattr(export, "save_file", Mock(side_effect=error))
    with refused(UsageError, str(error)):
        export.export(path_of(tmp_path / "checkpoints", 1), tmp_path / "exported" / "out", "fp32")
    assert list((tmp_path / "exported").iterdir()) == []
