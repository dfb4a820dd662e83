"""Fitting positive constants so that predictions come nearer to measurements: robust, and held by what is known before.

What is minimised is the weighted sum of the absolute log ratios of predicted to measured, smoothed near 0, plus a
spring on each constant that pulls towards its prior value and decides what the measurements leave open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

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
MOST_STEPS = 30
SMALLEST_GAIN = 3e-4


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
    if not constants:
        return {}
    lowest, highest = ({each.name: getattr(each, end) for each in constants} for end in ("lowest", "highest"))
    rest, now, *bounds = (coordinates_of(constants, values) for values in (prior, start or prior, lowest, highest))
    springs = np.sqrt(SMOOTHING * SPRING) * np.eye(len(now))
    found = least_squares(
        lambda where: np.hstack([ratios(values_at(constants, where)), springs @ (where - rest)]),
        np.clip(now, *bounds),
        lambda where: np.vstack([slopes(ratios, constants, values_at(constants, where)), springs]),
        bounds,
        method="dogbox",  # which ends at a bound, and not just before it
        ftol=smallest_gain,
        f_scale=SMOOTHING,
        loss=lambda squares: np.hstack([weights * _soft_l1(squares[: -len(now)]), _square(squares[-len(now) :])]),
        max_nfev=MOST_STEPS,
    )
    return values_at(constants, found.x)


def _soft_l1(squares: Floats) -> Floats:
    """The loss of errors by their squares in units of `SMOOTHING`, with both of its derivatives, (3, n)."""
    root = np.sqrt(1 + squares)
    return np.array([2 * (root - 1), 1 / root, -0.5 / root**3])


def _square(squares: Floats) -> Floats:
    """The loss of springs, likewise."""
    return np.array([squares, np.ones_like(squares), np.zeros_like(squares)])


def coordinates_of(constants: Sequence[Constant], values: Values) -> Floats:
    return np.array([each.coordinate(values[each.name]) for each in constants])


def values_at(constants: Sequence[Constant], coordinates: Floats) -> dict[str, float]:
    return {each.name: each.value(float(where)) for each, where in zip(constants, coordinates, strict=True)}


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
