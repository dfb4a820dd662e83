"""The lesson of published rows that were left out: how far predictions were off, and where the rows lay."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, TypeAdapter

from conf.schema import Frozen, NonNegative

VALIDATED = Path(__file__).with_name("validated.yaml")


class Range(Frozen):
    """The smallest and the largest value among the rows."""

    lowest: float
    highest: float


class Validated(Frozen):
    """The lesson of rows that were left out: constants were fitted without all rows of a row's generation of devices.

    Attributes:
        half: how far the logarithm of an interval's end is from that of the prediction; `width_of` widens it. A new
            machine errs as a generation that was left out does. Of few generations it is no mere 80 % quantile over
            tables, but one for `generations` + 1 of them: with five the level is 0.8 x 6 / 5 = 0.96.
        rivals: by how much the ratio of two predictions of one model on one machine was off, in four of five pairs.
        rows, tables, generations: how many it rests on.
        sources: how many sources measured each device, trainer and kind of plan, by name.
        trainers: names of the trainers that ran them, each with the ranges of its rows, by what is measured.
        traits: what rows of each trainer had, by the names of TRAITS.
    """

    half: NonNegative
    rivals: NonNegative
    rows: Annotated[int, Field(ge=0)]
    tables: Annotated[int, Field(ge=0)]
    generations: Annotated[int, Field(ge=0)]
    sources: dict[str, int]
    trainers: dict[str, dict[str, Range]]
    traits: dict[str, Annotated[tuple[str, ...], Field(strict=False)]]


@cache
def load_validated(path: Path = VALIDATED) -> Validated:
    content = yaml.safe_load(path.read_text())
    return TypeAdapter(Validated).validate_python(content)


def yaml_text(found: Validated) -> str:
    """The text of validated.yaml."""
    heading = "# Written by `python -m benchmarks.fitting --write`; do not edit.\n"
    return heading + yaml.safe_dump(found.model_dump(mode="json"), sort_keys=False, width=120)
