"""Fitted constants written where they are declared: conf/efficiency, conf/cluster, and modules of the cost model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fitting.constants import GPUS, NETWORK, NETWORKS, OTHERS, SCALE, chip_values, fitted_constants
from calibrate.robust_fit import Values
from conf.compose.load import cluster_named
from conf.folders import CONF_DIR, options
from train_core.whole_files import write_atomically

COSTS = CONF_DIR.parent / "train_core" / "costs"


@dataclass(frozen=True)
class WrittenPlace:
    """A number in a text file of the project.

    Attributes:
        declared_as: the name in whose declaration it stands, of several in the file; empty where there is one.
    """

    path: Path
    field: str
    value: float
    declared_as: str = ""


def write_constants(values: Values) -> list[WrittenPlace]:
    """Write every constant to its place, and return the places. Nothing is written if one of them is not there."""
    places = list(places_of(values))
    texts: dict[Path, str] = {}
    for place in places:
        text = texts.get(place.path) or place.path.read_text()
        texts[place.path] = with_number(text, place.field, place.value, place.declared_as)
    for path, text in texts.items():
        write_atomically(path, text)
    return places


def places_of(values: Values) -> Iterator[WrittenPlace]:
    """The place of each value."""
    for chip in options("efficiency"):
        path = CONF_DIR / "efficiency" / f"{chip}.yaml"
        yield from (WrittenPlace(path, field, value) for field, value in chip_values(values, chip).items())
    for cluster in options("cluster"):
        kind = NETWORKS.get(cluster_named(cluster).links[-1].name)
        if kind is not None:
            yield WrittenPlace(CONF_DIR / "cluster" / f"{cluster}.yaml", "link", values[f"{NETWORK}.{kind}"])
    chips = options("efficiency")
    for each in fitted_constants():
        if each.group == SCALE:
            yield WrittenPlace(COSTS / "setting.py", each.field, values[each.name])
        elif each.group not in (GPUS, OTHERS, NETWORK, *chips):
            trainer = each.group.replace("-", "_").upper()
            yield WrittenPlace(COSTS / "trainers.py", each.field, values[each.name], trainer)


def with_number(text: str, field: str, value: float, declared_as: str = "") -> str:
    """The text with the one number replaced that stands behind `field:`, `field=` or `"field":`.

    Args:
        declared_as: the name whose declaration alone is looked through.
    """
    start = text.index(f"\n{declared_as} = ") if declared_as else 0
    end = text.index("\n)\n", start) if declared_as else len(text)
    stated = re.compile(rf'(?<![\w.])("?{re.escape(field)}"?(?::|=)\s?)-?\d[\d._]*(?:e-?\d+)?')
    declaration, times = stated.subn(lambda match: match.group(1) + number_text(value), text[start:end])
    assert times == 1, f"{field} is stated {times} times, and has to be stated once"
    return text[:start] + declaration + text[end:]


def number_text(value: float) -> str:
    """Three digits, with a point, as YAML and Python read a float: `0.72`, `5.0e-6`."""
    mantissa, _, exponent = f"{value:.3g}".partition("e")
    mantissa += "" if "." in mantissa else ".0"
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa
