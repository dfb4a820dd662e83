"""Puts sensitivities into one sentence, and reads the order of knobs that a published study found."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from results.knobs.sensitivity import KnobEffect, Sensitivity
from results.knobs.table import setting_text
from results.units import percent

ORDERS = Path(__file__).parents[1] / "published_knob_order.csv"


def finding(sensitivity: Sensitivity) -> str:
    """Return the sentence that names the knob that mattered most, or says that the trials do not tell."""
    trials = (
        f"{sensitivity.num_points} {'measured trials' if sensitivity.rates_are == 'measured' else 'predicted points'}"
    )
    if not sensitivity.is_told:
        explained = percent(max(0.0, sensitivity.explained))
        return (
            f"These {trials} do not tell which knob mattered: the knobs explain {explained} % of the differences"
            f" between trials that were left out."
        )
    leaders = sensitivity.leaders
    if len(leaders) == 1:
        return f"{_capitalize(leaders[0].column.words)} mattered most in {trials}: {_what_it_does(leaders[0])}."
    named = _join_names([effect.column.words for effect in leaders])
    does = _what_it_does(max(leaders, key=lambda effect: effect.share))
    return f"{_capitalize(named)} mattered most, and {trials} do not tell which of them more: {does}."


def _what_it_does(effect: KnobEffect) -> str:
    return (
        f"{effect.column.words} {setting_text(effect.fastest_at)} is {100 * effect.gain:.0f} % faster than"
        f" {setting_text(effect.slowest_at)} with all other knobs as they were"
    )


def _join_names(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _capitalize(text: str) -> str:
    return text[0].upper() + text[1:]


@dataclass(frozen=True)
class PublishedPlace:
    """The place of one knob in a study's order; two may share a place.

    Attributes:
        confirmed: `yes` where the order was looked up in the source, `no` where it is recalled.
    """

    place: int
    knob: str
    source: str
    confirmed: str


def published_order(sweep: str) -> list[PublishedPlace]:
    """Return the order of the study that the sweep of this name repeats; empty for all other sweeps."""
    with ORDERS.open(newline="") as lines:
        return [
            PublishedPlace(int(row["place"]), row["knob"], row["source"], row["confirmed"])
            for row in csv.DictReader(lines)
            if row["sweep"] == sweep
        ]
