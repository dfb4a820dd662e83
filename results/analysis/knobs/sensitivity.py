"""The share of the differences between a sweep's rates that each knob explains, and how sure that is.

A forest of regression trees learns the logarithm of the rate, so that effects are ratios, and SHAP values share out
each prediction among the knobs. Importances of some dozens of trials move with every trial that is added. All is
therefore done again on trials drawn anew with replacement, and what is said of the order of knobs is what most of those
draws agree on.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from conf.own_files import at_hand
from conf.units import count_of
from results.analysis.knobs.table import KnobColumn, KnobPoint, KnobTable, RatesAre, Set, columns_of, setting_text
from results.render.units import percent

if TYPE_CHECKING:
    from results.analysis.knobs.forest import Forest


Floats = npt.NDArray[np.float64]
FEWEST_POINTS = 12
"""With fewer trials no draw of them is like another, and the libraries are not even imported. Assumed."""
EQUAL = 1e-9
"""Rates that differ by less, relatively, are the same number but for rounding."""
LEAST_EXPLAINED = 0.3
"""Where trees explain less of trials that they have not seen, their importances describe noise. Assumed."""
MOST_POINTS = 400
"""Of more trials so many are taken, evenly over their ranking: more change no order and take minutes."""
FEWEST_OF_EACH = 6
"""With fewer trials that ran out, or fewer that did not, trees learn those few by heart. Assumed."""
MOST_ROWS = 6
"""Neighbouring values of a knob with more of them share a row."""
LEAST_WHOLE_GAIN = 0.005
"""A smaller one rounds to 0 %."""

QUANTILES = (0.1, 0.9)
NUM_DRAWS, NUM_TREES, NUM_TREES_OF_DRAW, SEED = 40, 64, 16, 0

Draw: TypeAlias = tuple[Floats, list[Floats]]
"""Of one forest the share of each knob, and the rate for each of its values."""
KnobShare: TypeAlias = tuple[KnobColumn, float]


@dataclass(frozen=True)
class KnobEffect:
    """The effect of one knob on the rate.

    Attributes:
        share: of the mean size of all SHAP values, the mean over all draws; `low` and `high` hold four draws of five.
        fanova: its share, alone, of the variance over all combinations of values.
        first: in which part of the draws it mattered most.
        rates: the rate for each of its values, all other knobs as they were, in FLOP/s per device.
        low_rates, high_rates: four draws of five are between them.
    """

    column: KnobColumn
    share: float
    low: float
    high: float
    fanova: float
    first: float
    rates: tuple[float, ...]
    low_rates: tuple[float, ...]
    high_rates: tuple[float, ...]

    @property
    def fastest_at(self) -> Set:
        return self.column.values[int(np.argmax(self.rates))]

    @property
    def slowest_at(self) -> Set:
        return self.column.values[int(np.argmin(self.rates))]

    @property
    def gain(self) -> float:
        """The gain from its worst value to its best: 0.5 is one and a half times the rate."""
        return max(self.rates) / min(self.rates) - 1


@dataclass(frozen=True)
class Interaction:
    """Two knobs whose effects depend on each other; `share` of the mean size of all SHAP values."""

    first: KnobColumn
    second: KnobColumn
    share: float


@dataclass(frozen=True)
class Sensitivity:
    """The effects of all knobs, as far as the points tell them.

    Attributes:
        explained: share of the variance that trees explain of points that they have not seen; at most 1, and below 0
            where the mean would do better.
        effects: the knobs, that with the largest share first.
        interactions: pairs, the strongest first.
    """

    rates_are: RatesAre
    num_points: int
    explained: float
    effects: tuple[KnobEffect, ...]
    interactions: tuple[Interaction, ...]

    @property
    def is_told(self) -> bool:
        """True if the trees explain enough for the order of knobs to mean anything."""
        return self.explained >= LEAST_EXPLAINED

    @property
    def leaders(self) -> tuple[KnobEffect, ...]:
        """The fewest knobs of which one mattered most in four draws of five."""
        in_order = sorted(self.effects, key=lambda effect: -effect.first)
        reached = np.cumsum([effect.first for effect in in_order])
        # Parts of forty draws add up with rounding, which must not ask for one knob more.
        return tuple(in_order[: int(np.searchsorted(reached, 0.8 - 1e-9)) + 1])


def why_untold(table: KnobTable) -> str:
    """The reason why these points cannot say which knob mattered; empty if they may."""
    rated, columns = len(table.rated_points), len(table.columns)
    if columns < 2:
        return "fewer than two knobs vary"
    fewest = max(FEWEST_POINTS, 2 * columns)
    if rated < fewest:
        few = count_of(rated, "trial", "with a rate is", "with a rate are")
        return f"{few} too few for {columns} knobs: at least {fewest} are needed"
    rates = [point.rate or 0.0 for point in table.rated_points]
    # No tree has anything to split then, and fANOVA divides by what they split.
    return f"all {rated} trials have the same rate" if max(rates) <= min(rates) * (1 + EQUAL) else ""


def sensitivity(table: KnobTable) -> Sensitivity:
    """The knobs in the order of their shares. The same points give the same answer.

    The points must be able to tell; see `why_untold`.
    """
    assert not why_untold(table)
    # Importing what is behind this takes seconds.
    from results.analysis.knobs.forest import Forest, fanova_shares

    columns = table.columns
    codes, values = _arrays(table)
    forest, grid = Forest(codes, values, NUM_TREES, SEED, judged=True), _grid(codes, columns)
    draws = [_draw(Forest, codes, values, grid, columns, number) for number in range(NUM_DRAWS)]
    fanova = fanova_shares(codes, values, [len(column.values) for column in columns], SEED)
    effects = [_effect(number, column, draws, fanova[number]) for number, column in enumerate(columns)]
    return Sensitivity(
        rates_are=table.rates_are,
        num_points=len(table.rated_points),
        explained=forest.explained_share,
        effects=tuple(sorted(effects, key=lambda effect: -effect.share)),
        interactions=_interactions(columns, forest.shap_interactions(codes)),
    )


def _draw(
    forest_of: type[Forest], codes: Floats, values: Floats, grid: Floats, columns: Sequence[KnobColumn], number: int
) -> Draw:
    """A forest of as many points, drawn with replacement; it is asked about all points."""
    # A draw has a seed of its own, so that the same points give the same answer in whatever order draws are made.
    rows = np.random.default_rng([SEED, number]).integers(0, len(values), len(values))
    forest = forest_of(codes[rows], values[rows], NUM_TREES_OF_DRAW, number)
    # The mean prediction for every value of every knob, as a rate; the grid has all points once for each of them.
    sizes = [len(column.values) for column in columns]
    means = forest.predict(grid).reshape(sum(sizes), -1).mean(axis=1)
    rates = [np.exp(part) for part in np.split(means, np.cumsum(sizes)[:-1])]
    return _shares_of(forest.shap_values(codes)), rates


def _arrays(table: KnobTable) -> tuple[Floats, Floats]:
    """Codes of the knobs and logarithms of the rates, of all points or of some evenly over their ranking."""
    ranked = sorted(table.rated_points, key=lambda point: point.rate or 0.0)
    taken = [ranked[int(row)] for row in np.linspace(0, len(ranked) - 1, min(len(ranked), MOST_POINTS))]
    # Of logarithms, so that the effects of knobs multiply, as times and shares of a step do.
    return _codes(taken, table.columns), np.log([point.rate or 0.0 for point in taken])


def _codes(points: Sequence[KnobPoint], columns: Sequence[KnobColumn]) -> Floats:
    return np.array([[column.code(point.settings[column.name]) for column in columns] for point in points], dtype=float)


def _shares_of(shap_values: Floats) -> Floats:
    """The share of each knob in the mean size of all SHAP values, (points, knobs)."""
    sizes: Floats = np.abs(shap_values).mean(axis=0)
    return sizes / max(float(sizes.sum()), 1e-300)  # all zero where trees found nothing to split


def _grid(codes: Floats, columns: Sequence[KnobColumn]) -> Floats:
    """All points once for every value of every knob, with that knob set to that value."""
    blocks = []
    for number, column in enumerate(columns):
        for code in range(len(column.values)):
            changed = codes.copy()
            changed[:, number] = code
            blocks.append(changed)
    return np.concatenate(blocks)


def _effect(number: int, column: KnobColumn, draws: Sequence[Draw], fanova: float) -> KnobEffect:
    shares, rates = np.array([shares for shares, _ in draws]), np.array([rates[number] for _, rates in draws])
    low, high = np.quantile(shares[:, number], QUANTILES)
    low_rates, high_rates = np.quantile(rates, QUANTILES, axis=0)
    return KnobEffect(
        column=column,
        share=float(shares[:, number].mean()),
        low=float(low),
        high=float(high),
        fanova=fanova,
        first=float((shares.argmax(axis=1) == number).mean()),
        # The geometric mean, because the trees learnt logarithms.
        rates=tuple(map(float, np.exp(np.log(rates).mean(axis=0)))),
        low_rates=tuple(map(float, low_rates)),
        high_rates=tuple(map(float, high_rates)),
    )


def _interactions(columns: Sequence[KnobColumn], moved: Floats) -> tuple[Interaction, ...]:
    """Pairs by the mean size of what only both together do, as a share of all that moves the points."""
    sizes = np.abs(moved).mean(axis=0)
    # SHAP puts half of what a pair does together into either of its two cells.
    interactions = [
        Interaction(columns[a], columns[b], float((sizes[a, b] + sizes[b, a]) / max(float(sizes.sum()), 1e-300)))
        for a, b in combinations(range(len(columns)), 2)
    ]
    return tuple(sorted(interactions, key=lambda pair: -pair.share))


def finding(sensitivity: Sensitivity) -> str:
    """Return the sentence that names the knob that mattered most, or says that the trials do not tell."""
    what = "measured trials" if sensitivity.rates_are == "measured" else "predicted points"
    trials = f"{sensitivity.num_points} {what}"
    if not sensitivity.is_told:
        explained = percent(max(0.0, sensitivity.explained))
        return (
            f"These {trials} do not tell which knob mattered: the knobs explain {explained} % of the differences"
            f" between trials that were left out."
        )
    leaders = sensitivity.leaders
    *others, last = [effect.column.words for effect in leaders]
    named = f"{', '.join(others)} and {last}" if others else last
    untold = f", and {trials} do not tell which of them more" if others else f" in {trials}"
    most = max(leaders, key=lambda effect: effect.share)
    faster = f"{100 * most.gain:.0f}" if most.gain >= LEAST_WHOLE_GAIN else "less than 1"
    return (
        f"{named[0].upper()}{named[1:]} mattered most{untold}: {most.column.words} {setting_text(most.fastest_at)} is"
        f" {faster} % faster than {setting_text(most.slowest_at)} with all other knobs as they were."
    )


@dataclass(frozen=True)
class PublishedPlace:
    """The place of one knob in a study's order; two may share a place."""

    place: int
    knob: str
    source: str
    confirmed: str


def published_order(sweep: str) -> list[PublishedPlace]:
    """Return the order of the study that the sweep of this name repeats; empty for all other sweeps."""
    with at_hand("results/published_knob_order.csv").open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["sweep"] == sweep]
    return [PublishedPlace(int(row["place"]), row["knob"], row["source"], row["confirmed"]) for row in rows]


@dataclass(frozen=True)
class MemoryCount:
    """The number of trials with these values, and how many of them ran out of memory."""

    column: KnobColumn
    values: tuple[Set, ...]
    num_trials: int
    num_out: int

    @property
    def words(self) -> str:
        """The value, or the first and the last of several."""
        return " to ".join(dict.fromkeys(map(setting_text, (self.values[0], self.values[-1]))))

    @property
    def share(self) -> float:
        return self.num_out / self.num_trials


def memory_counts(table: KnobTable) -> list[MemoryCount]:
    """A row for every value of every knob that varies, those with the largest differences first.

    Empty where nothing ran out of memory.
    """
    if all(point.rate is not None for point in table.points):
        return []
    by_column = [_counts_of(table, column) for column in columns_of(table.points)]
    by_column.sort(key=lambda counts: min(each.share for each in counts) - max(each.share for each in counts))
    return [each for counts in by_column for each in counts]


def memory_shares(table: KnobTable) -> list[KnobShare]:
    """Return each knob's share in whether a point runs out of memory, the largest first.

    The shares are those of SHAP values of trees that tell the points with a rate from those without. Empty where there
    are too few of either.
    """
    out = np.array([point.rate is None for point in table.points], dtype=float)
    if min(out.sum(), len(out) - out.sum()) < FEWEST_OF_EACH:
        return []
    # Importing what is behind this takes seconds.
    from results.analysis.knobs.forest import Forest

    columns = columns_of(table.points)
    rows = np.random.default_rng(SEED).permutation(len(out))[:MOST_POINTS]
    codes = _codes([table.points[row] for row in rows], columns)
    shares = _shares_of(Forest(codes, out[rows], NUM_TREES, SEED).shap_values(codes))
    return sorted(zip(columns, map(float, shares), strict=True), key=lambda share: -share[1])


def _counts_of(table: KnobTable, column: KnobColumn) -> list[MemoryCount]:
    every = Counter(point.settings[column.name] for point in table.points)
    out = Counter(point.settings[column.name] for point in table.points if point.rate is None)
    groups = np.array_split(np.arange(len(column.values)), min(len(column.values), MOST_ROWS))
    groups_of_values = [tuple(column.values[number] for number in group) for group in groups]
    return [
        MemoryCount(column, values, sum(every[value] for value in values), sum(out[value] for value in values))
        for values in groups_of_values
    ]
