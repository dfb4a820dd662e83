"""Published figures, for display beside what was measured and predicted here; never merged with either."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

from conf.errors import ConfigError

TABLE = Path(__file__).with_name("published.csv")


# CSV knows no None: what a source does not say is an empty cell.
def _none_if_empty(cell: object) -> object:
    return None if cell == "" else cell


Number = Annotated[float | None, BeforeValidator(_none_if_empty)]
Size = Annotated[int | None, BeforeValidator(_none_if_empty)]
Text = Annotated[str | None, BeforeValidator(_none_if_empty)]


class PublishedFigure(BaseModel):
    """One row of `published.csv`; None where the source does not say.

    Attributes:
        tflops_per_device: 1e12 FLOP/s as printed by the source.
        flops_kind: what the source counts: `hardware` includes recomputation, `model` does not.
        confirmed: `yes`; `partial` where parts of the row are inferred (see notes); `no` where it was recalled from
            memory, and is shown as unconfirmed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    source: str
    arxiv: str
    where: str
    model: str
    device: str
    peak_tflops_per_device: Number
    num_devices: Size
    tensor_parallel_size: Size
    pipeline_parallel_size: Size
    data_parallel_size: Size
    micro_batch_size: Size
    global_batch_size: Size
    recompute: Text
    tflops_per_device: Number
    flops_kind: Annotated[Literal["hardware", "model"] | None, BeforeValidator(_none_if_empty)]
    percent_of_peak: Number
    scaling_kind: Annotated[Literal["strong", "weak"] | None, BeforeValidator(_none_if_empty)]
    scaling_efficiency_percent: Number
    confirmed: Literal["yes", "partial", "no"]
    notes: str

    @property
    def confirmation(self) -> str:
        """The words for how far the row is confirmed."""
        return {"yes": "confirmed", "partial": "partly confirmed", "no": "unconfirmed"}[self.confirmed]


@cache
def published_figures() -> dict[str, PublishedFigure]:
    """The whole table by id, in the order of the file."""
    with TABLE.open(newline="") as file:
        figures = [PublishedFigure.model_validate(row) for row in csv.DictReader(file)]
    return {figure.id: figure for figure in figures}


def chosen_figures(ids: Sequence[str]) -> list[PublishedFigure]:
    """The figures that a sweep asks for, in its order.

    Raises:
        ConfigError: an id that the table does not have; lists the known ones.
    """
    figures = published_figures()
    for wanted in ids:
        if wanted not in figures:
            near = difflib.get_close_matches(wanted, figures, n=1)
            remedy = f"Did you mean {near[0]}? " if near else ""
            raise ConfigError(
                "sweep.published", wanted, "is not an id in published.csv", f"{remedy}Known: {', '.join(figures)}."
            )
    return [figures[wanted] for wanted in ids]
