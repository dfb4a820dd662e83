"""Which checkpoints a folder holds, and which of them are whole. No torch.

A checkpoint is written into a draft folder beside the others and renamed when its last byte is on disk, so that a kill
at any time leaves whole ones and drafts. Files that were cut off later are found by their sizes.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
from pathlib import Path

from pydantic import ValidationError

from conf.errors import ConfigError
from conf.schema import Frozen
from conf.world import ModelSpec

FACTS, KEY = "checkpoint.json", "checkpoint.load"
LOGGER = logging.getLogger(__name__)


class Facts(Frozen):
    """What a checkpoint says of itself.

    Attributes:
        step: the last step that was done.
        num_updates: how often the weights were updated, which Adam's correction of its moments depends on.
        label: the layout that wrote it, for people.
        loss_scale: see `loss_scale.LossScale.state`; empty where it is constant.
        file_bytes: size of every other file.
    """

    step: int
    num_updates: int
    label: str
    model: ModelSpec
    loss_scale: dict[str, float]
    file_bytes: dict[str, int]


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:06d}"


def draft_of(folder: Path, step: int) -> Path:
    return folder / f".draft-{step:06d}"


def read_facts(checkpoint: Path) -> Facts:
    return Facts.model_validate_json((checkpoint / FACTS).read_text())


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint; None when it is whole."""
    try:
        facts = read_facts(checkpoint)
    except (OSError, ValidationError, UnicodeDecodeError):
        return f"has no readable {FACTS}"
    for name, expected in facts.file_bytes.items():
        path = checkpoint / name
        found = path.stat().st_size if path.exists() else None
        if found != expected:
            return f"lacks {name}" if found is None else f"has {found} of the {expected} bytes of {name}"
    return None


def _checkpoints(folder: Path) -> list[Path]:
    """All checkpoints in the order of their steps, whether they are whole or not."""
    return sorted((path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdecimal()), key=_step)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def last_whole(folder: Path) -> Path | None:
    """The latest checkpoint that is whole; damaged ones that are later are named in the log."""
    for checkpoint in reversed(_checkpoints(folder)):
        problem = damage(checkpoint)
        if problem is None:
            return checkpoint
        LOGGER.warning("checkpoint %s %s; going back to an earlier one", checkpoint, problem)
    return None


def require_start(load: str | None, own: Path) -> None:
    """Refuse a path that is wrong or not on this node. Each rank asks before it joins, and before a model is built.

    Args:
        load: `checkpoint.load`; a training with a whole checkpoint in its folder `own` goes on without it.

    Raises:
        ConfigError: it cannot be read here.
    """
    if load is None or os.access(Path(load).expanduser(), os.R_OK) or last_whole(own) is not None:
        return
    problem = f"cannot be read on {socket.gethostname()}"
    raise ConfigError(KEY, load, problem, "Name a checkpoint or Hugging Face weights that all nodes share, or null.")


def publish(folder: Path, facts: Facts) -> None:
    """Make the draft of a step, whose files are all written, a checkpoint; their sizes are added to its facts."""
    draft, final = draft_of(folder, facts.step), path_of(folder, facts.step)
    # The facts come last: without them a folder counts as damaged, however it came to be there.
    file_bytes = {path.name: path.stat().st_size for path in draft.iterdir()}
    with (draft / FACTS).open("w") as file:
        file.write(facts.model_copy(update={"file_bytes": file_bytes}).model_dump_json(indent=1))
        file.flush()
        os.fsync(file.fileno())
    # A checkpoint of this step can only be a damaged one: after a whole one the step would not have been done again.
    shutil.rmtree(final, ignore_errors=True)
    draft.rename(final)


def delete_others(folder: Path, step: int, keep_last: int) -> None:
    """After `step` has been saved, delete the checkpoints of later steps, which will be done again, and all checkpoints
    that are older than the last `keep_last` whole ones.
    """
    checkpoints = _checkpoints(folder)
    # Damaged ones do not count as kept, or a few of them would push out all that are whole.
    whole = [path for path in checkpoints if _step(path) <= step and damage(path) is None]
    oldest = min((_step(path) for path in whole[-keep_last:]), default=0)
    for checkpoint in checkpoints:
        if not oldest <= _step(checkpoint) <= step:
            shutil.rmtree(checkpoint)


def delete_drafts(folder: Path) -> None:
    """Delete what was left behind by writers that were killed."""
    for draft in folder.glob(".draft-*"):
        shutil.rmtree(draft)
