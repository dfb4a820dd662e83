"""Stages: what follows the trials of a sweep, such as an evaluation, a conversion or a second training.

The first stage is the sweep's own trial, `train`. Every other one names the stage that it comes after, so that stages
make a tree, which is checked here before anything starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, JsonValue, ValidationError, field_validator

from conf.errors import ConfigError
from conf.nearest import nearest
from conf.types.schema import Count, Frozen, Name
from conf.types.trainer_spec import MetricsSpec, split_words

TRAIN = "train"
"""The stage that a sweep's points are: whatever follows directly says `after: train`."""

STAGES = "sweep.stages"
LIKE_A_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]*", re.ASCII)


class StageSpec(Frozen):
    """One step after every trial of a sweep.

    Attributes:
        after: the stage that must have completed before: `train`, or another one of these.
        command: the program, as in `trainer.command`; null trains once more with the sweep's trainer.
        trainer: further keys of `trainer`, such as `start`, `environment`, `prefix` or `flags`.
        overrides: changes of the configuration for this stage, which hold before the point's.
        metrics: where the program's figures are found; null: it has none.
        load: the stage whose checkpoints a training of this package begins with; null begins as configured.
        best: only so many of the best trials by `search.objective` have this stage, once all others have ended; null:
            all.
    """

    after: Name
    command: Annotated[tuple[str, ...], Field(strict=False)] | None = None
    trainer: dict[str, JsonValue] = Field(default_factory=dict)
    overrides: Annotated[tuple[str, ...], Field(strict=False)] = ()
    metrics: MetricsSpec | None = None
    load: Name | None = None
    best: Count | None = None

    @field_validator("command", mode="before")
    @classmethod
    def _words(cls, value: object) -> object:
        return value if value is None else split_words(value, "command")


class StagePlace(Frozen):
    """The place of an experiment in its chain; the job finds the folders of what came before by it.

    Attributes:
        name: of its stage.
        follows: ids of the trials before it, by their stages, the first one first.
    """

    name: Name
    follows: dict[str, str]

    @property
    def folder_names(self) -> tuple[str, ...]:
        """The names in braces that stand for the folders of earlier stages."""
        return tuple(f"{stage}.folder" for stage in self.follows)

    def folders_beside(self, folder: Path) -> list[Path]:
        """The folders of the earlier stages, in that order: they lie beside that of this one."""
        return [folder.absolute().parent / trial_id for trial_id in self.follows.values()]


def checked_stages(stages: Any) -> Any:
    """The stages of a file once their names are sound: pydantic's own words would hide which one is wrong."""
    for name, stage in stages.items() if isinstance(stages, dict) else ():
        if not LIKE_A_WORD.fullmatch(str(name)) or name == TRAIN:
            problem = "is the sweep's own trial" if name == TRAIN else "is not a name of a stage"
            raise ConfigError(STAGES, name, problem, "Use another name, of letters, digits, dashes and underscores.")
        if isinstance(stage, dict) and "after" not in stage:
            remedy = f"Say what it follows, such as `after: {TRAIN}`."
            raise ConfigError(f"{STAGES}.{name}.after", None, "is not given", remedy)
        try:
            StageSpec.model_validate(stage)
        except ConfigError as error:
            raise ConfigError(f"{STAGES}.{name}.{error.key}", error.value, error.problem, error.remedy) from None
        except ValidationError:
            pass  # pydantic finds it again, and then knows where
    return stages


def require_tree(stages: Mapping[str, StageSpec]) -> None:
    """Raises ConfigError for stages of which one never begins, or loads what does not come before it."""
    for name, stage in stages.items():
        earlier, key = list(earlier_stages(name, stages)), f"{STAGES}.{name}"
        if stage.metrics is not None and stage.command is None:
            remedy = "Give its command, or leave them out."
            raise ConfigError(f"{key}.metrics", stage.metrics.places, "are of a program, and this is none", remedy)
        if stage.load is not None and stage.command is not None:
            remedy = f"Pass the folder in its command, as {{{stage.load}.folder}}."
            raise ConfigError(f"{key}.load", stage.load, "is nothing that a program is told", remedy)
        if stage.load is not None and stage.load not in earlier:
            remedy = f"Load one of {', '.join(earlier)}."
            raise ConfigError(f"{key}.load", stage.load, "is not a stage before this one", remedy)
        if stage.best is not None and stage.after != TRAIN:
            remedy = f"Write `after: {TRAIN}`, and let the other stage follow this one."
            raise ConfigError(f"{key}.best", stage.best, f"chooses among trials of {TRAIN} alone", remedy)


def earlier_stages(name: str, stages: Mapping[str, StageSpec]) -> Iterator[str]:
    """The stages before this one, the last one first.

    Raises ConfigError where one of them is unknown, or they follow each other in a circle.
    """
    passed, at = [name], name
    while at != TRAIN:
        after, key = stages[at].after, f"{STAGES}.{at}.after"
        if after != TRAIN and after not in stages:
            raise ConfigError(key, after, "is not a stage of this sweep", nearest(after, [TRAIN, *stages]))
        if after in passed:
            circle = " after ".join([*passed[passed.index(after) :], after])
            raise ConfigError(key, after, f"closes a circle: {circle}", f"Begin with one that says `after: {TRAIN}`.")
        passed.append(after)
        yield after
        at = after


def following(stages: Mapping[str, StageSpec], name: str) -> list[str]:
    """The stages that come directly after this one."""
    return [other for other, stage in stages.items() if stage.after == name]
