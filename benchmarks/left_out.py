"""benchmarks/left_out.csv: what constants say of each published row that were fitted without its table and clusters."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

LEFT_OUT = Path(__file__).with_name("left_out.csv")


class LeftOutRow(NamedTuple):
    """One published row.

    Attributes:
        place: file and line, such as `published.csv:12`.
        predicted_s: seconds of a step by the constants of the tree.
        left_out_s: the same by constants fitted without its table and its machines.
        low_s, high_s: the interval that rows of other tables and machines make around that.
    """

    place: str
    table: str
    series: str
    machine: str
    layout: str
    measured_s: float
    predicted_s: float
    left_out_s: float
    low_s: float
    high_s: float

    @property
    def error(self) -> float:
        """Relative error by constants fitted without the row's table and machines."""
        return self.left_out_s / self.measured_s - 1

    @property
    def is_inside(self) -> bool:
        return self.low_s <= self.measured_s <= self.high_s
