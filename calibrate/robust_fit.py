"""Refitting a few positive constants so that predictions come nearer to measurements: robust and regularised.

Constants are varied in steps of a factor of two (those that may be 0 in steps of their own). What is minimised is
the sum of the absolute log ratios of predicted to measured, smoothed near 0, plus springs that pull towards the present
values and decide what the trials leave open. The method is reweighted least squares with derivatives by differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Mapping[str, float]
LogRatios: TypeAlias = Callable[[Values], Floats]
"""Log of predicted over measured of every trial, (n,), for the given constants."""

SMOOTHING = 0.01
"""Errors below 1 % count as squares, so that the cost has a derivative at 0. Larger ones count as themselves: a trial
that something disturbed then pulls no harder than the others."""

SPRING = 0.1
"""A factor of two away from the present value costs as much as an error of 5 % in one trial."""

NOTICEABLE = 0.02
"""A constant is fitted if a step of it moves the predictions by 2 % (root mean square) in a way that no other does."""

STEP = 0.05
MOST_STEPS = 20
MOST_HALVINGS = 6
SMALLEST_GAIN = 1e-4


@dataclass(frozen=True)
class Constant:
    """One constant and its physical bounds.

    Attributes:
        factor: a step multiplies by this; 0 where a step adds `unit` instead.
    """

    name: str
    lowest: float
    highest: float
    factor: float = 2.0
    unit: float = 0.0

    def coordinate(self, value: float) -> float:
        """The coordinate of `value`, in steps."""
        # A value of 0 has no logarithm, and the lowest value is nearest to it.
        return math.log(max(value, self.lowest), self.factor) if self.factor else value / self.unit

    def value(self, coordinate: float) -> float:
        """The value at a coordinate, kept within the bounds."""
        value = self.factor**coordinate if self.factor else coordinate * self.unit
        return min(max(value, self.lowest), self.highest)


@dataclass(frozen=True)
class Chosen:
    """Which constants are fitted.

    Attributes:
        fitted: constants that the trials can tell apart, the one with the largest effect first.
        left_alone: the others, and why.
    """

    fitted: tuple[Constant, ...]
    left_alone: dict[str, str]


def choose(ratios: LogRatios, constants: Sequence[Constant], present: Values) -> Chosen:
    """Which constants to fit: each has to move the predictions in a way that those before it do not.

    At most as many as there are trials less one, so that some error can remain to be seen.
    """
    columns = dict(zip((constant.name for constant in constants), _slopes(ratios, constants, present).T, strict=True))
    whole = {name: _size(column) for name, column in columns.items()}
    fitted: list[Constant] = []
    left: dict[str, str] = {}
    rest = list(constants)
    while rest:
        rest.sort(key=lambda constant: -_size(columns[constant.name]))
        best, *rest = rest
        why = _why_not(whole[best.name], _size(columns[best.name]), len(fitted), len(columns[best.name]))
        if why:
            left[best.name] = why
            continue
        fitted.append(best)
        # Gram-Schmidt: what the chosen constant can explain is taken out of the effects of all others.
        direction = columns[best.name] / np.linalg.norm(columns[best.name])
        columns = {name: column - direction * (direction @ column) for name, column in columns.items()}
    return Chosen(tuple(fitted), left)


def _why_not(whole: float, own: float, num_fitted: int, num_trials: int) -> str:
    """Why a constant is not fitted; empty if it is. `own` is the effect that constants fitted already do not have."""
    if whole < NOTICEABLE:
        return f"hardly any effect on these trials ({100 * whole:.1f} % a step)"
    if own < NOTICEABLE:
        return "these trials cannot tell it from the constants that are fitted"
    return "as many constants are fitted as these trials allow" if num_fitted >= num_trials - 1 else ""


def refit(
    ratios: LogRatios, constants: Sequence[Constant], present: Values, start: Values | None = None
) -> dict[str, float]:
    """The values of `constants` that fit best; none of them moves without gain.

    Args:
        present: where the springs rest; has a value for every constant.
        start: where to begin; `present` unless given.
    """
    rest = np.array([constant.coordinate(present[constant.name]) for constant in constants])
    now = np.array([constant.coordinate((start or present)[constant.name]) for constant in constants])

    def values(coordinates: Floats) -> dict[str, float]:
        return {
            constant.name: constant.value(float(where)) for constant, where in zip(constants, coordinates, strict=True)
        }

    def cost(coordinates: Floats) -> float:
        return float(
            np.sum(np.hypot(ratios(values(coordinates)), SMOOTHING)) + SPRING / 2 * np.sum((coordinates - rest) ** 2)
        )

    lowest = np.array([constant.coordinate(constant.lowest) for constant in constants])
    highest = np.array([constant.coordinate(constant.highest) for constant in constants])
    spent = cost(now)
    for _ in range(MOST_STEPS):
        step = _step(
            ratios(values(now)), _slopes(ratios, constants, values(now)), now - rest, lowest - now, highest - now
        )
        # The step is exact only for a linear model; halved often enough, it lowers the cost or nothing does.
        for halving in range(MOST_HALVINGS):
            tried = now + step / 2**halving
            if (reached := cost(tried)) < spent:
                break
        else:
            break
        gain, now, spent = spent - reached, tried, reached
        if gain < SMALLEST_GAIN * spent:
            break
    return values(now)


def _step(left: Floats, slopes: Floats, stretch: Floats, lowest: Floats, highest: Floats) -> Floats:
    """The step of reweighted least squares, constants that would leave their bounds stopping there."""
    weights = 1 / np.hypot(left, SMOOTHING)
    normal = (slopes.T * weights) @ slopes + SPRING * np.eye(len(stretch))
    target = -(slopes.T * weights) @ left - SPRING * stretch
    step, free = np.zeros(len(stretch)), np.ones(len(stretch), dtype=bool)
    while free.any():
        step[free] = np.linalg.solve(
            normal[np.ix_(free, free)], target[free] - normal[np.ix_(free, ~free)] @ step[~free]
        )
        bounded = np.clip(step, lowest, highest)
        # Constants at a bound are held there, and the rest is solved again, as the best values of the others change.
        outside = free & (bounded != step)
        step = bounded
        if not outside.any():
            break
        free &= ~outside
    return step


def _slopes(ratios: LogRatios, constants: Sequence[Constant], present: Values) -> Floats:
    """How each log ratio changes with a step of each constant, (trials, constants)."""
    base = ratios(present)
    columns = []
    for constant in constants:
        where = constant.coordinate(present[constant.name])
        # At its upper bound a constant can only be moved down.
        inward = -STEP if constant.value(where + STEP) == constant.value(where) else STEP
        moved = constant.value(where + inward)
        columns.append((ratios({**present, constant.name: moved}) - base) / inward)
    return np.stack(columns, axis=1) if columns else np.zeros((len(base), 0))


def _size(column: Floats) -> float:
    """The root mean square of a column."""
    return float(np.sqrt(np.mean(column**2)))
