"""The lessons of rows that were left out for every prediction: how wide intervals are, and what lies outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import yaml
from numpy.typing import NDArray

from benchmarks.levels import Ends
from benchmarks.practices import SHARE, ends_around
from benchmarks.published_rows import MeasuredRow, weighted_quantile
from sweeps.confidence import Range, Validated, kinds_of, sizes_of, traits_of, width_of

Floats = NDArray[np.float64]
MOST_PAIRS = 400


def lessons_of(rows: Sequence[MeasuredRow], ratios: Floats) -> Validated:
    """The lessons of these rows, every table as much as any other.

    Args:
        ratios: log of predicted over measured of every row, by constants fitted without its generation, (n,).
    """
    return _with_errors(_coverage_of(rows), rows, ratios)


def yaml_text(found: Validated) -> str:
    heading = "# Written by `python -m benchmarks.fitting --write`; do not edit.\n"
    return heading + yaml.safe_dump(found.model_dump(mode="json"), sort_keys=False, width=120)


def intervals(rows: Sequence[MeasuredRow], ratios: Floats) -> list[Ends]:
    """The interval of each row around the prediction without its group, as wide as other rows of its practice are off.

    No row of these files was among those.

    Args:
        ratios: log of predicted over measured of every row, by constants fitted without its group, (n,).
    """
    return [ends_around(row, row.seconds * float(np.exp(ratio))) for row, ratio in zip(rows, ratios, strict=True)]


def _coverage_of(rows: Sequence[MeasuredRow]) -> Validated:
    """The kinds and sizes of the rows, without what their errors say."""
    by_trainer: dict[str, list[Mapping[str, float]]] = {}
    traits: dict[str, set[str]] = {}
    for row in rows:
        by_trainer.setdefault(row.run.implementation.name, []).append(sizes_of(row.run.setup))
        traits.setdefault(row.run.implementation.name, set()).update(traits_of(row.run.setup))
    return Validated(
        rivals=0.0,
        rows=len(rows),
        tables=len({row.table for row in rows}),
        sources=_sources(rows),
        trainers={name: _ranges(by_trainer[name]) for name in sorted(by_trainer)},
        traits={name: tuple(sorted(traits[name])) for name in sorted(traits)},
    )


def _sources(rows: Sequence[MeasuredRow]) -> dict[str, int]:
    """The number of sources that measured each trainer and kind of plan."""
    found: dict[str, set[str]] = {}
    for row in rows:
        setup = row.run.setup
        for name in (row.run.implementation.name, *kinds_of(setup)):
            found.setdefault(name, set()).add(row.source)
    return {name: len(found[name]) for name in sorted(found)}


def _with_errors(known: Validated, rows: Sequence[MeasuredRow], ratios: Floats) -> Validated:
    """The same with how far predictions were off, by what a row's interval is wide for its layers."""
    usual = ratios / [width_of(row.run.setup) for row in rows]
    return known.model_copy(update={"rivals": round(_rivals(rows, usual), 4)})


def _rivals(rows: Sequence[MeasuredRow], usual: Floats) -> float:
    """The distance of the errors of two rows of one series, in four pairs of five, every table weighing the same."""
    series = np.array([row.series for row in rows])
    by_table: dict[str, list[Floats]] = {}
    for name in dict.fromkeys(series.tolist()):
        of_series = np.flatnonzero(series == name)
        by_table.setdefault(rows[of_series[0]].table, []).append(_apart(usual[of_series]))
    pairs = [np.concatenate(apart) for apart in by_table.values()]
    known = [apart for apart in pairs if len(apart)]
    weights = [np.full(len(apart), 1 / len(apart)) for apart in known]
    return weighted_quantile(np.concatenate(known), np.concatenate(weights), SHARE) if known else 0.0


def _apart(ratios: Floats) -> Floats:
    """The differences of all pairs, or of evenly chosen ones where there are many."""
    first, second = np.triu_indices(len(ratios), 1)
    every: Floats = np.abs(ratios[first] - ratios[second])
    return every[:: max(1, len(every) // MOST_PAIRS)]


def _ranges(sizes: Sequence[Mapping[str, float]]) -> dict[str, Range]:
    every = {name: [of_row[name] for of_row in sizes] for name in sizes[0]}
    return {name: Range(lowest=_round(min(values)), highest=_round(max(values))) for name, values in every.items()}


def _round(value: float) -> float:
    return float(f"{value:.4g}") if value < 1000 else float(round(value))
