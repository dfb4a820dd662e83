"""benchmarks/calibrated.csv: what a calibration on at most five rows of a table does to the error on the rest of it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

CALIBRATED = Path(__file__).with_name("calibrated.csv")


class ReplayedCalibration(NamedTuple):
    """One table, of whose rows at most five were measured and the rest was predicted.

    Errors are mean absolute ones on the rest: before by constants fitted without the table and its clusters, after the
    same once these were calibrated.

    Attributes:
        told_before, told_after: where the five are those that say most (calibrate.refit_cluster).
        drawn_before, drawn_after: where they were drawn, several times.
        others_before, others_after: where all other rows were known, so that no choice of five could do better by much.
    """

    table: str
    num_rows: int
    told_before: float
    told_after: float
    drawn_before: float
    drawn_after: float
    others_before: float
    others_after: float
