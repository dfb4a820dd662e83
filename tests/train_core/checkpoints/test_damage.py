"""What a disk has changed is found before it is trained on, and no file of a checkpoint can run code."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conf.errors import ConfigError, UsageError
from conf.plan.experiment import Experiment
from tests.messages import refused
from tests.train_core.conftest import ALONE, ExperimentOf, Worlds
from train_core.checkpoints.checkpoint_folder import FACTS, Unreadable, _checksum, damage, path_of, read_facts
from train_core.checkpoints.export import export
from train_core.process.world import World
from train_core.training.trainer import Trainer

SMALL = {"model.num_layers": 1, "batch.global_batch_size": 2}
FLIPS_A_FILE = 25


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory, experiment_of: ExperimentOf) -> tuple[Trainer, Path]:
    """A training that has saved after each of its first two steps, and its checkpoints, which nobody changes."""
    folder = tmp_path_factory.mktemp("training")
    trainer = Trainer(experiment_of(SMALL), ALONE, folder / "tokens")
    with trainer.checkpoints(folder / "checkpoints") as checkpoints:
        for step in (1, 2):
            trainer.step(step)
            checkpoints.save(step)
    return trainer, folder / "checkpoints"


@pytest.fixture
def trainer(training: tuple[Trainer, Path]) -> Trainer:
    return training[0]


@pytest.fixture
def folder(training: tuple[Trainer, Path], tmp_path: Path) -> Path:
    """A copy of the checkpoints of steps 1 and 2."""
    return Path(shutil.copytree(training[1], tmp_path / "checkpoints"))


def state_of(trainer: Trainer) -> list[Tensor]:
    return [flat.clone() for state in trainer.optimizer.states for flat in state.tensors().values()]


def loaded(trainer: Trainer, path: Path) -> list[Tensor] | str:
    """What the trainer holds after it has started from a checkpoint, or how it was refused."""
    checkpoints = trainer.checkpoints(None)
    checkpoints.plan = checkpoints.plan.model_copy(update={"load": str(path)})
    for flat in (flat for state in trainer.optimizer.states for flat in state.tensors().values()):
        flat.zero_()
    try:
        assert checkpoints.restore() == 0
    except ConfigError as refused:
        return str(refused)
    return state_of(trainer)


def loaded_whole(trainer: Trainer, path: Path) -> list[Tensor]:
    found = loaded(trainer, path)
    assert not isinstance(found, str), found
    return found


def equal(found: list[Tensor] | str, expected: list[Tensor]) -> bool:
    assert not isinstance(found, str), found
    return all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.parametrize("file", ["__0_0.distcp", ".metadata", "checkpoint.json"])
def test_no_flipped_bit_is_trained_on(file: str, trainer: Trainer, folder: Path) -> None:
    last = path_of(folder, 2)
    expected = loaded_whole(trainer, last)
    num_refused = 0
    for bit in random.Random(1).sample(range(8 * (last / file).stat().st_size), FLIPS_A_FILE):
        flip(last / file, bit)
        found = loaded(trainer, last)
        if isinstance(found, str):
            num_refused += 1
            assert file in found, found
            assert f"The last complete one next to it is {path_of(folder, 1)}." in found
        else:  # bytes between the tensors, which nobody reads
            assert equal(found, expected), f"bit {bit} of {file} was trained on"
        flip(last / file, bit)
    assert num_refused >= 0.8 * FLIPS_A_FILE
    assert equal(loaded(trainer, last), expected)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip_in_the_middle(path: Path) -> None:
    flip(path, 8 * (path.stat().st_size // 2))


@pytest.mark.parametrize(
    ("file", "damaged", "told"),
    [
        (
            "__0_0.distcp",
            flip_in_the_middle,
            r"has a __0_0\.distcp that is not as it was written \(bytes \d+ to \d+ have",
        ),
        ("__0_0.distcp", cut_off, r"has \d+ of the \d+ bytes of __0_0\.distcp"),
        ("__0_0.distcp", Path.unlink, r"lacks __0_0\.distcp"),
        (".metadata", flip_in_the_middle, r"has a \.metadata that is not as it was written"),
        ("checkpoint.json", flip_in_the_middle, r"has .*checkpoint\.json"),
    ],
)
def test_a_training_goes_back_to_the_checkpoint_before_and_says_so(
    file: str,
    damaged: Callable[[Path], None],
    told: str,
    trainer: Trainer,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    damaged(path_of(folder, 2) / file)
    assert trainer.checkpoints(folder).restore() == 1
    (warning,) = warnings_of(caplog)
    assert re.fullmatch(rf"checkpoint \S+step-000002 {told}.*; going back to step 1", warning), warning


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("train_core")]


def test_a_training_whose_checkpoints_are_all_damaged_does_not_begin_anew(trainer: Trainer, folder: Path) -> None:
    flip_in_the_middle(path_of(folder, 1) / "__0_0.distcp")
    cut_off(path_of(folder, 2) / "__0_0.distcp")
    with refused(UsageError):
        trainer.checkpoints(folder).restore()


def test_of_a_folder_that_is_asked_for_the_last_readable_one_is_taken(trainer: Trainer, folder: Path) -> None:
    expected = loaded_whole(trainer, path_of(folder, 1))
    flip_in_the_middle(path_of(folder, 2) / "__0_0.distcp")
    assert equal(loaded(trainer, folder), expected)
    flip_in_the_middle(path_of(folder, 1) / "__0_0.distcp")
    told = loaded(trainer, folder)
    assert isinstance(told, str)
    assert "holds no whole checkpoint: the last one, step-000002, has a __0_0.distcp" in told


def with_metadata(checkpoint: Path, content: bytes) -> None:
    """Other metadata under checksums that fit: who can write such a file can write these, too."""
    (checkpoint / ".metadata").write_bytes(content)
    said = json.loads((checkpoint / FACTS).read_text())
    said |= {"metadata_crc32": zlib.crc32(content), "file_bytes": said["file_bytes"] | {".metadata": len(content)}}
    (checkpoint / FACTS).write_text(json.dumps(said | {"crc32": _checksum(said)}))


@pytest.mark.parametrize("name", ["__0_1.distcp", "__7_0.distcp", "model.safetensors", "pytorch_model.bin", "note.txt"])
def test_files_that_a_checkpoint_does_not_name_are_no_part_of_it(name: str, trainer: Trainer, folder: Path) -> None:
    expected = loaded_whole(trainer, path_of(folder, 2))
    for beside in (path_of(folder, 2), folder):
        (beside / name).write_bytes(b"of another training")
    assert damage(path_of(folder, 2)) is None
    for path in (path_of(folder, 2), folder):
        assert equal(loaded(trainer, path), expected)


def test_a_checkpoint_that_lost_its_checksums_is_not_taken(trainer: Trainer, folder: Path) -> None:
    facts = path_of(folder, 2) / FACTS
    said = json.loads(facts.read_text())
    del said["crc32"], said["metadata_crc32"]
    facts.write_text(json.dumps(said))
    assert trainer.checkpoints(folder).restore() == 1


class Payload:
    """What runs a function when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_no_file_of_a_checkpoint_runs_code(trainer: Trainer, folder: Path, tmp_path: Path) -> None:
    last, mark = path_of(folder, 2), tmp_path / "mark"
    with_metadata(last, pickle.dumps(Payload(mark)))
    told = loaded(trainer, last)
    assert isinstance(told, str)
    assert "has a .metadata that names posix.mkdir, which no checkpoint needs: it may be there to run code" in told
    with refused(UsageError, "posix.mkdir"):
        export(last, tmp_path / "out", "fp32")
    assert not mark.exists()
    assert list(tmp_path.glob("*out*")) == []


def test_a_damaged_checkpoint_is_not_exported(folder: Path, tmp_path: Path) -> None:
    last = path_of(folder, 2)
    for bit in range(0, 8 * (last / "__0_0.distcp").stat().st_size, 8 * 1000):
        flip(last / "__0_0.distcp", bit)
    with refused(UsageError):
        export(last, tmp_path / "out", "fp32")
    assert list(tmp_path.glob("*out*")) == []


def test_what_later_versions_say_besides_does_not_spoil_the_checksum(folder: Path) -> None:
    """A file is held against what stands in it, and not against what this version makes of it."""
    last = path_of(folder, 2)
    text = (last / "checkpoint.json").read_text()
    (last / "checkpoint.json").write_text(text.replace("\n", "\n  "))
    assert damage(last) is None
    (last / "checkpoint.json").write_text(text.replace('"num_updates": 2', '"num_updates": 3'))
    with refused(Unreadable, "checkpoint.json"):
        read_facts(last)


def saved_by_two(world: World, experiment: Experiment, folder: Path) -> None:
    trainer = Trainer(experiment, world, folder / "tokens")
    with trainer.checkpoints(folder / "checkpoints") as checkpoints:
        checkpoints.save(1)
        checkpoints.save(2)


def restored_by(world: World, experiment: Experiment, folder: Path) -> int:
    return Trainer(experiment, world, folder / "tokens").checkpoints(folder / "checkpoints").restore()


def test_all_ranks_go_back_where_one_has_read_something_else(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    two = experiment_of(SMALL | {"parallel.world_size": 2, "parallel.zero_stage": 1})
    worlds(2).run(saved_by_two, two, tmp_path)
    flip_in_the_middle(path_of(tmp_path / "checkpoints", 2) / "__1_0.distcp")
    assert worlds(2).run(restored_by, two, tmp_path) == [1, 1]
