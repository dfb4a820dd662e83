"""The order of knobs that a published study found, for sweeps that repeat it."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

ORDERS = Path(__file__).parents[1] / "published_knob_order.csv"


@dataclass(frozen=True)
class PublishedPlace:
    """Where a study puts one knob; two may share a place.

    Attributes:
        confirmed: `yes` where the order was looked up in the source, `no` where it is recalled.
    """

    place: int
    knob: str
    source: str
    confirmed: str


def published_order(sweep: str) -> list[PublishedPlace]:
    """What the study found that the sweep of this name repeats; empty for all others."""
    with ORDERS.open(newline="") as lines:
        return [
            PublishedPlace(int(row["place"]), row["knob"], row["source"], row["confirmed"])
            for row in csv.DictReader(lines)
            if row["sweep"] == sweep
        ]
