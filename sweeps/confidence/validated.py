"""What was learned from published rows that were left out: how far predictions were off, and where rows lay."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, TypeAdapter

from conf.schema import Frozen, NonNegative, Positive

VALIDATED = Path(__file__).with_name("validated.yaml")


class Range(Frozen):
    """The smallest and the largest value among the rows."""

    lowest: float
    highest: float


class Validated(Frozen):
    """Everything that was learned, by constants that were fitted without the row's table and clusters.

    Attributes:
        low: measured over predicted, which one row in ten was below, in the mean over tables; `width_of` widens it.
        high: the same, which one row in ten was above.
        rivals: by how much the ratio of two predictions of one model on one machine was off, in four of five pairs.
        rows, tables: how many it rests on.
        devices: names of the devices that rows ran on.
        trainers: names of the trainers that ran them, each with the ranges of its rows, by what is measured.
        traits: what rows of each trainer had, by the names of TRAITS.
    """

    low: Positive
    high: Positive
    rivals: NonNegative
    rows: Annotated[int, Field(ge=0)]
    tables: Annotated[int, Field(ge=0)]
    devices: Annotated[tuple[str, ...], Field(strict=False)]
    trainers: dict[str, dict[str, Range]]
    traits: dict[str, Annotated[tuple[str, ...], Field(strict=False)]]


@cache
def validated(path: Path = VALIDATED) -> Validated:
    content = yaml.safe_load(path.read_text())
    return TypeAdapter(Validated).validate_python(content)


def written(found: Validated) -> str:
    """The text of validated.yaml."""
    heading = "# Written by `python -m benchmarks.fitting --write`; do not edit.\n"
    return heading + yaml.safe_dump(found.model_dump(mode="json"), sort_keys=False, width=120)
