"""The checkpoint that `checkpoint.load` means, and its description of itself. One rank asks for all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch.distributed.checkpoint.metadata import Metadata

from conf.errors import ConfigError
from conf.model_spec import ModelSpec
from conf.schema import Value
from train_core.checkpoints.checkpoint_folder import KEY, Facts, checkpoints_in, damage, last_whole, read_facts
from train_core.checkpoints.metadata import read_metadata, saved_shapes
from train_core.checkpoints.same_model import require_same_shapes, require_same_spec
from train_core.checkpoints.same_training import require_same_training


def asked_for(path: Path, unreadable: Mapping[Path, str]) -> Path:
    """The checkpoint that `checkpoint.load` names: the path itself, or the last whole one of a folder of them.

    Args:
        unreadable: checkpoints whose tensors have turned out to be damaged, and what is wrong with each.

    Raises:
        ConfigError: there is none.
    """
    if (problem := unreadable.get(path) or damage(path)) is None:
        return path
    if (last := last_whole(path, unreadable)) is not None:
        return last
    if not path.is_dir():
        raise ConfigError(KEY, str(path), "is not a folder", "Name a checkpoint folder, or null.")
    if held := checkpoints_in(path):
        problem = f"the last one, {held[-1].name}, {unreadable.get(held[-1]) or damage(held[-1])}"
        raise ConfigError(KEY, str(path), f"holds no whole checkpoint: {problem}", "Name another folder, or null.")
    instead = last_whole(path.parent, unreadable)
    remedy = "Name another one, or null." if instead is None else f"The last whole one beside it is {instead}."
    raise ConfigError(KEY, str(path), f"is no whole checkpoint: it {problem}", remedy)


def said_by(checkpoint: Path, model: ModelSpec, training: Mapping[str, Value] | None = None) -> tuple[Facts, Metadata]:
    """A checkpoint's description of itself and of its tensors.

    Args:
        training: what `same_training.facts_of_training` says of one that is to go on after the checkpoint's step; None
            where its weights and moments are all that is taken.

    Raises:
        Unreadable: it is damaged.
        ConfigError: it is of another model, or of another training.
    """
    facts = read_facts(checkpoint)
    require_same_spec(checkpoint, facts.model, model)
    if training is not None:
        require_same_training(checkpoint, facts, training)
    metadata = read_metadata(checkpoint, facts)
    require_same_shapes(checkpoint, saved_shapes(metadata), model)
    return facts, metadata
