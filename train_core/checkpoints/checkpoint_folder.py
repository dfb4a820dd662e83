"""The checkpoints in a folder, and the check that they are whole. No torch.

A checkpoint is written into a draft folder beside the others and renamed when its last byte is on disk, so that a kill
at any time leaves whole ones and drafts. Files that were cut off later are found by their sizes, and other damage by
checksums: `checkpoint.json` has its own and that of `.metadata`, which has that of every box in the other files.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from pydantic import Field, ValidationError

from conf.errors import ConfigError, TrisweepError, UsageError
from conf.types.model_spec import ModelSpec
from conf.types.schema import Frozen, Value
from train_core.trial.atomic import write_in_room

FACTS, METADATA, KEY = "checkpoint.json", ".metadata", "checkpoint.load"
LOGGER = logging.getLogger(__name__)


class Unreadable(TrisweepError):
    """A checkpoint does not hold what was written. The message goes on after its name: "has a .metadata that ...".

    An error of ours so that it reaches all ranks as it is.
    """


class Facts(Frozen):
    """A checkpoint's description of itself.

    Attributes:
        step: the last step that was done.
        num_updates: how often the weights were updated, which Adam's correction of its moments depends on.
        label: the layout that wrote it, for people.
        loss_scale: see `narrow.LossScale.state`; empty where it is constant.
        training: what its losses follow from besides model and step, by dotted key, and the name of its tokens: see
            `what_to_read.facts_of_training`.
        file_bytes: size of every other file; this and what follows is filled in by `publish`.
        metadata_crc32: checksum of `.metadata`.
        crc32: checksum of all that is said here besides.
    """

    step: int
    num_updates: int
    label: str
    model: ModelSpec
    loss_scale: dict[str, float]
    training: dict[str, Value]
    file_bytes: dict[str, int] = Field(default_factory=dict)
    metadata_crc32: int = 0
    crc32: int = 0


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:06d}"


def draft_of(folder: Path, step: int) -> Path:
    return folder / f".draft-{step:06d}"


def read_facts(checkpoint: Path) -> Facts:
    """Raises Unreadable where they are not there, or not what was written."""
    try:
        content = (checkpoint / FACTS).read_bytes()
        facts = Facts.model_validate_json(content)
    except (OSError, ValidationError):
        raise Unreadable(f"has no readable {FACTS}") from None
    if facts.crc32 != _checksum(json.loads(content)):
        raise Unreadable(f"has a {FACTS} that is not as it was written")
    return facts


def _checksum(said: dict[str, object]) -> int:
    """The checksum of all values of a `checkpoint.json` but itself, as they stand there.

    Not of a `Facts` read from it: a later version of the program may know of more values than the file has.
    """
    rest = {key: value for key, value in said.items() if key != "crc32"}
    return zlib.crc32(json.dumps(rest, sort_keys=True).encode())


def damage(checkpoint: Path) -> str | None:
    """The fault of a checkpoint as far as can be told without reading its tensors; None where there is none."""
    try:
        facts = read_facts(checkpoint)
        # Sizes first: a look at each file finds what was cut off, without reading it.
        for name, expected in facts.file_bytes.items():
            found = (checkpoint / name).stat().st_size
            if found != expected:
                return f"has {found} of the {expected} bytes of {name}"
        if _crc32_of(checkpoint / METADATA) != facts.metadata_crc32:
            return f"has a {METADATA} that is not as it was written"
    except FileNotFoundError as error:
        return f"lacks {Path(error.filename).name}"
    except OSError as error:
        return f"has files that cannot be read ({error.strerror})"
    except Unreadable as problem:
        return str(problem)
    return None


def _crc32_of(path: Path) -> int:
    return zlib.crc32(path.read_bytes())


def checkpoints_in(folder: Path) -> list[Path]:
    """All checkpoints in the order of their steps, whether they are whole or not."""
    # By the number and not by the name, whose six digits a long training outgrows.
    return sorted((path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdecimal()), key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def last_whole(
    folder: Path, unreadable: Mapping[Path, str] = MappingProxyType({}), *, warns: bool = True
) -> Path | None:
    """The latest checkpoint that is whole. Damaged ones that are later are named in the log.

    Args:
        unreadable: checkpoints whose tensors have turned out to be damaged, and what is wrong with each.
        warns: False for who only looks at how far a training is: whoever goes on with it warns.
    """
    passed_over: list[tuple[Path, str]] = []
    found = None
    for checkpoint in reversed(checkpoints_in(folder)):
        problem = unreadable.get(checkpoint) or damage(checkpoint)
        if problem is None:
            found = checkpoint
            break
        passed_over.append((checkpoint, problem))
    instead = "there is no earlier complete one" if found is None else f"going back to step {step_of(found)}"
    for checkpoint, problem in passed_over if warns else ():
        LOGGER.warning("checkpoint %s %s; %s", checkpoint, problem, instead)
    return found


def last_to_go_on_from(folder: Path, unreadable: Mapping[Path, str]) -> Path | None:
    """The latest whole checkpoint of a training; None where it has not saved one yet. See `last_whole`.

    Raises:
        UsageError: it has, and all of them are damaged. To begin anew is for people to decide, not for a restart.
    """
    found = last_whole(folder, unreadable)
    if found is None and (damaged := checkpoints_in(folder)):
        problem = (
            f"{damaged[-1]} {unreadable.get(damaged[-1]) or damage(damaged[-1])}, and no other checkpoint is whole"
        )
        raise UsageError(problem, f"Bring back a copy of one, or move {folder} away to begin with step 1.")
    return found


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
    """Make the draft of a step, whose files are all written, a checkpoint. Sizes and checksums join its facts."""
    draft, final = draft_of(folder, facts.step), path_of(folder, facts.step)
    file_bytes = {path.name: path.stat().st_size for path in draft.iterdir()}
    crc32 = _crc32_of(draft / METADATA)
    said = facts.model_copy(update={"file_bytes": file_bytes, "metadata_crc32": crc32}).model_dump(mode="json")
    # The facts come last: without them a folder counts as damaged, however it came to be there.
    write_in_room(draft / FACTS, json.dumps(said | {"crc32": _checksum(said)}, indent=1))
    # A checkpoint of this step can only be a damaged one: after a whole one the step would not have been done again.
    shutil.rmtree(final, ignore_errors=True)
    draft.rename(final)


def delete_others(folder: Path, step: int, keep_last: int) -> None:
    """After `step` has been saved, delete the checkpoints of later steps, which will be done again, and all checkpoints
    that are older than the last `keep_last` whole ones. One that cannot be deleted stays, and the log names it.
    """
    checkpoints = checkpoints_in(folder)
    # Damaged ones do not count as kept, or a few of them would push out all that are whole.
    whole = [path for path in checkpoints if step_of(path) <= step and damage(path) is None]
    oldest = min((step_of(path) for path in whole[-keep_last:]), default=0)
    for checkpoint in checkpoints:
        if not oldest <= step_of(checkpoint) <= step:
            try:
                shutil.rmtree(checkpoint)
            except OSError as error:  # as of NFS while somebody reads in it; the one that was saved is no worse for it
                LOGGER.warning("checkpoint %s cannot be deleted (%s)", checkpoint, error.strerror)


def delete_drafts(folder: Path) -> None:
    """Delete what was left behind by writers that were killed."""
    for draft in folder.glob(".draft-*"):
        shutil.rmtree(draft)
