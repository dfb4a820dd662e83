"""Fitting positive constants so that predictions come nearer to measurements: robust, and held by what is known before.

What is minimised is the weighted sum of the absolute log ratios of predicted to measured, smoothed near 0, plus a
spring on each constant that pulls towards its prior value and decides what the measurements leave open. The method is
reweighted least squares with derivatives by differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Mapping[str, float]
LogRatios: TypeAlias = Callable[[Values], Floats]
"""Log of predicted over measured of every measurement, (n,), for the given constants."""

SMOOTHING = 0.04
"""Errors below 4 % count as squares: configurations that two sources measured differ by as much in the mean, so that
nothing is won by coming nearer. Larger ones count as themselves: a measurement that something disturbed then pulls no
harder than the others."""

SPRING = 0.05
"""A constant that is one spread away from its prior costs as much as an error of 2.5 % in one measurement."""

NOTICEABLE = 0.005
"""A constant is fitted if its spread moves the predictions by 0.5 % (root mean square)."""

STEP = 0.1
MOST_STEPS = 12
MOST_REWEIGHTINGS = 50
MOST_HALVINGS = 6
SMALLEST_GAIN = 3e-4
SETTLED = 3e-4
"""Reweighting ends where it lowers the cost by a smaller share, however much a step has to gain: it predicts nothing
anew, so that it costs hardly any time."""


@dataclass(frozen=True)
class Constant:
    """One positive constant, its physical bounds, and how well it is known.

    Attributes:
        spread: of its logarithm around the prior value; the unit of all steps.
    """

    name: str
    lowest: float
    highest: float
    spread: float

    def coordinate(self, value: float) -> float:
        """The coordinate of `value`, in spreads."""
        # A value of 0 has no logarithm, and the lowest value is nearest to it.
        return math.log(max(value, self.lowest)) / self.spread

    def value(self, coordinate: float) -> float:
        """The value at a coordinate, kept within the bounds."""
        return min(max(math.exp(coordinate * self.spread), self.lowest), self.highest)


@dataclass(frozen=True)
class FittedConstants:
    """The choice of constants to fit, and why the others are left alone."""

    fitted: tuple[Constant, ...]
    left_alone: dict[str, str]


def choose_constants(ratios: LogRatios, constants: Sequence[Constant], present: Values) -> FittedConstants:
    """Choose the constants that move these predictions; of those that do so alike, springs decide which moves more."""
    columns = slopes(ratios, constants, present)
    sizes = np.sqrt(np.mean(columns**2, axis=0)).tolist() if len(columns) else []
    effects = dict(zip((each.name for each in constants), sizes, strict=True))
    fitted = tuple(each for each in constants if effects[each.name] >= NOTICEABLE)
    reasons = {name: f"hardly any effect here ({100 * effect:.1f} %)" for name, effect in effects.items()}
    return FittedConstants(fitted, {name: why for name, why in reasons.items() if effects[name] < NOTICEABLE})


def refit(
    ratios: LogRatios,
    constants: Sequence[Constant],
    prior: Values,
    start: Values | None = None,
    weights: Floats | float = 1.0,
    smallest_gain: float = SMALLEST_GAIN,
) -> dict[str, float]:
    """The values of `constants` that fit best; none of them moves without gain.

    Args:
        prior: where the springs rest; has a value for every constant.
        start: where to begin; `prior` unless given.
        weights: of every measurement, (n,).
        smallest_gain: share of the cost that a step has to earn for another one to be made.
    """
    rest, now = coordinates_of(constants, prior), coordinates_of(constants, start or prior)
    residuals = ratios(values_at(constants, now))
    for _ in range(MOST_STEPS):
        slope = slopes(ratios, constants, values_at(constants, now))
        stepped = linear_step(ratios, constants, residuals, slope, now, rest, weights)
        if stepped is None:
            break
        gain = 1 - _cost(stepped.residuals, stepped.now - rest, weights) / _cost(residuals, now - rest, weights)
        now, residuals = stepped
        if gain < smallest_gain:
            break
    return values_at(constants, now)


class Stepped(NamedTuple):
    """Coordinates, (constants,), and the log ratios there, (n,)."""

    now: Floats
    residuals: Floats


def linear_step(
    ratios: LogRatios,
    constants: Sequence[Constant],
    residuals: Floats,
    slope: Floats,
    now: Floats,
    rest: Floats,
    weights: Floats | float,
) -> Stepped | None:
    """A step that makes the cost less, towards what would be best if log ratios were linear; None where none is found.

    Args:
        residuals: log ratios at `now`, (n,).
        slope: their derivatives there, (n, constants).
        now, rest: coordinates of the constants, and where their springs rest, (constants,).
    """
    lowest = coordinates_of(constants, {each.name: each.lowest for each in constants})
    highest = coordinates_of(constants, {each.name: each.highest for each in constants})
    optimum, errors, spent = now, residuals, _cost(residuals, now - rest, weights)
    least = spent
    for _ in range(MOST_REWEIGHTINGS):
        optimum = optimum + _step(errors, slope, optimum - rest, (lowest - optimum, highest - optimum), weights)
        errors = residuals + slope @ (optimum - now)
        before, least = least, _cost(errors, optimum - rest, weights)
        if before - least < SETTLED * least:
            break
    # The optimum is exact only for a linear model; halved often enough, its step lowers the cost or nothing does.
    for halving in range(MOST_HALVINGS):
        tried = now + (optimum - now) / 2**halving
        residuals_there = ratios(values_at(constants, tried))
        if _cost(residuals_there, tried - rest, weights) < spent:
            return Stepped(tried, residuals_there)
    return None


def coordinates_of(constants: Sequence[Constant], values: Values) -> Floats:
    return np.array([each.coordinate(values[each.name]) for each in constants])


def values_at(constants: Sequence[Constant], coordinates: Floats) -> dict[str, float]:
    return {each.name: each.value(float(where)) for each, where in zip(constants, coordinates, strict=True)}


def _cost(residuals: Floats, stretch: Floats, weights: Floats | float) -> float:
    return float(np.sum(weights * np.hypot(residuals, SMOOTHING)) + SPRING / 2 * np.sum(stretch**2))


def _step(
    residuals: Floats, slope: Floats, stretch: Floats, bounds: tuple[Floats, Floats], weights: Floats | float
) -> Floats:
    """The step of reweighted least squares, (constants,), no further than `bounds`; springs pull by their `stretch`."""
    pull = weights / np.hypot(residuals, SMOOTHING)
    normal = (slope.T * pull) @ slope + SPRING * np.eye(len(stretch))
    target = -(slope.T * pull) @ residuals - SPRING * stretch
    step, free = np.zeros(len(stretch)), np.ones(len(stretch), dtype=bool)
    while free.any():
        known = normal[np.ix_(free, ~free)] @ step[~free]
        step[free] = np.linalg.solve(normal[np.ix_(free, free)], target[free] - known)
        bounded = np.clip(step, *bounds)
        # Constants at a bound are held there, and the rest is solved again, as the best values of the others change.
        outside = free & (bounded != step)
        step = bounded
        if not outside.any():
            break
        free &= ~outside
    return step


def slopes(ratios: LogRatios, constants: Sequence[Constant], present: Values) -> Floats:
    """The change of each log ratio with a spread of each constant, (n, constants)."""
    base = ratios(present)
    columns = []
    for constant in constants:
        where = constant.coordinate(present[constant.name])
        # At its upper bound a constant can only be moved down.
        inward = -STEP if where + STEP > constant.coordinate(constant.highest) else STEP
        moved = constant.value(where + inward)
        columns.append((ratios({**present, constant.name: moved}) - base) / inward)
    return np.stack(columns, axis=1) if columns else np.zeros((len(base), 0))
