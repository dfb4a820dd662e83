"""Points drawn from blocks of axes: who decides the values is asked for one after another, so that conditions hold.

A drawn number keeps four significant digits, which is as much as a person would write.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from conf.compose.tree import Tree
from conf.errors import ConfigError
from conf.types.axes import SweepAxis
from conf.types.schema import Value
from sweeps.points.axes import AxisSpace, Dimension, Point, spaces_of, value_in
from sweeps.points.plan import SweepPart, trial_of
from sweeps.trial import Trial

DRAWN_DIGITS = 4
MOST_LISTED = 20_000
"""The largest grid that is gone through for what the draws have left over, which takes half a minute."""
BLOCK = "space"
"""The name of the choice among blocks of axes."""
Choices = dict[str, float]
"""What was decided, by name: the number of a row, or a value of a range."""


class Chooser(Protocol):
    """Decides one choice after another."""

    def row(self, name: str, count: int, *, ordered: bool) -> int:
        """The number of one of `count` rows; `ordered` says whether neighbours are alike."""

    def number(self, name: str, axis: SweepAxis) -> float:
        """A value of a range, not yet rounded."""


class Draws(Protocol):
    """A source of choosers: it gives a new one for every draw, whose point counts as running from then on."""

    def chooser(self) -> Chooser: ...


@dataclass(frozen=True, slots=True)
class RandomChooser:
    """Every row and every value of a range is as likely as any other. It learns nothing, and serves every draw."""

    rng: np.random.Generator

    def chooser(self) -> RandomChooser:
        return self

    def row(self, name: str, count: int, *, ordered: bool) -> int:
        return int(self.rng.integers(count))

    def number(self, name: str, axis: SweepAxis) -> float:
        low, high, step = ends(axis)
        if axis.log:
            return math.exp(self.rng.uniform(math.log(low), math.log(high)))
        if step is not None:
            return float(low + step * self.rng.integers(round((high - low) / step) + 1))
        return float(self.rng.uniform(low, high))


def ends(axis: SweepAxis) -> tuple[float, float, float | None]:
    """The two ends of a range, the upper one moved down to where steps lead; and the step, which whole numbers have."""
    assert axis.low is not None
    assert axis.high is not None
    step = axis.step or (1 if axis.is_whole and not axis.log else None)
    if step is None:
        return axis.low, axis.high, None
    return axis.low, axis.after_steps(axis.num_steps(step), step), step


def draw_point(spaces: Sequence[AxisSpace], chooser: Chooser) -> Point | None:
    """One point; None where it breaks a constraint, or where a value that follows from others cannot be computed."""
    try:
        return _computed_point(spaces, chooser)
    except ConfigError:
        return None


def _computed_point(spaces: Sequence[AxisSpace], chooser: Chooser) -> Point | None:
    """One point; None where it breaks a constraint.

    Raises ConfigError where a value that follows from others, a condition or a constraint cannot be computed at it.
    """
    number = chooser.row(BLOCK, len(spaces), ordered=False) if len(spaces) > 1 else 0
    space, point = spaces[number], Point()
    for dimension in space.dimensions:
        if space.exists(dimension, point):
            point |= space.resolve(dimension, _row(dimension, chooser, number), point)
    return point if space.allows(point) else None


def choices_of(spaces: Sequence[AxisSpace], point: Mapping[str, Value]) -> Choices | None:
    """The choices that lead to a point, in the first block that has it; None where none has."""
    for number, space in enumerate(spaces):
        try:
            found = _choices_in(space, point, number)
        except ConfigError:  # no draw leads to a point at which a value cannot be computed
            found = None
        if found is not None:
            return {BLOCK: number, **found} if len(spaces) > 1 else found
    return None


def _row(dimension: Dimension, chooser: Chooser, block: int) -> tuple[Value, ...]:
    name = choice_name(dimension, block)
    if dimension.axis is not None:
        return (_round(chooser.number(name, dimension.axis), dimension.axis),)
    assert dimension.rows is not None
    count = len(dimension.rows)
    return dimension.rows[chooser.row(name, count, ordered=is_ordered(dimension)) if count > 1 else 0]


def choice_name(dimension: Dimension, block: int) -> str:
    return f"{block}:{dimension.name}"


def is_ordered(dimension: Dimension) -> bool:
    """True if the rows are numbers in ascending or descending order, so that neighbours are alike."""
    values = [row[0] for row in dimension.rows or ()]
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return len(dimension.keys) == 1 and numbers == values and numbers in (sorted(numbers), sorted(numbers)[::-1])


def _choices_in(space: AxisSpace, point: Mapping[str, Value], block: int) -> Choices | None:
    choices: Choices = {}
    known: Point = {}
    for dimension in space.dimensions:
        if not space.exists(dimension, known):
            if any(key in point for key in dimension.keys):
                return None
            continue
        values = {key: value_in(key, dict(point), space.tree) for key in dimension.keys}
        found = _number_of(space, dimension, values, known)
        if found is None:
            return None
        known |= values
        if dimension.rows is None or len(dimension.rows) > 1 or dimension.axis is not None:
            choices[choice_name(dimension, block)] = found
    return choices if set(point) <= set(known) else None


def _number_of(space: AxisSpace, dimension: Dimension, values: Point, known: Point) -> float | None:
    """The number of the row, or the value of the range, that gives these values; None where there is none."""
    if dimension.axis is not None:
        (value,) = values.values()
        return float(value) if isinstance(value, int | float) and _leads_to(dimension.axis, value) else None
    rows = enumerate(dimension.rows or ())
    return next((number for number, row in rows if space.resolve(dimension, row, known) == values), None)


def _leads_to(axis: SweepAxis, value: int | float) -> bool:
    """True if a draw can be this value: a range of steps or of whole numbers holds others between them."""
    is_continuous = not axis.is_whole and axis.step is None
    return axis.holds(value) and (is_continuous or _round(value, axis) == value)


def _round(value: float, axis: SweepAxis) -> int | float:
    low, high, step = ends(axis)
    if step is not None:
        return min(max(axis.after_steps(round((value - low) / step), step), low), high)
    if axis.is_whole:
        return int(min(max(round(value), low), high))
    return min(max(float(f"{value:.{DRAWN_DIGITS}g}"), float(low)), float(high))


def grid_points(spaces: Sequence[AxisSpace]) -> Iterator[Point]:
    """Every point of the blocks that can be computed, one after another; of continuous ranges there is none."""
    for space in spaces:
        yield from space.grid(leave_out=(ConfigError,))


NUM_DRAWN = 200
"""Points of which it is found out whether they can exist and fit, which takes less than a second."""


def require_computable(spaces: Sequence[AxisSpace]) -> None:
    """Raises ConfigError for axes of which no draw can be computed: a search would end without a word of it."""
    chooser, errors = RandomChooser(np.random.default_rng(0)), list[ConfigError]()
    while len(errors) < NUM_DRAWN:
        try:
            _computed_point(spaces, chooser)
        except ConfigError as error:
            errors.append(error)
        else:
            return
    is_small = sum(space.num_combinations for space in spaces) <= MOST_LISTED
    if not is_small or next(grid_points(spaces), None) is None:
        raise errors[0]


def space_size(part: SweepPart) -> str:
    """A sentence for people; empty where the sweep has no axes. Whether a script's points fit is not known.

    Raises ConfigError where a value that follows from others can be computed nowhere.
    """
    spaces = spaces_of(part.points, part.tree, part.pinned)
    if not spaces:
        return ""
    require_computable(spaces)
    number = sum(space.num_combinations for space in spaces)
    size = f"{number:,.0f} combination{'s' * (number != 1)}" if math.isfinite(number) else "a continuous space"
    chooser = RandomChooser(np.random.default_rng(0))
    points = [draw_point(spaces, chooser) for _ in range(NUM_DRAWN)]
    allowed = [point for point in points if point is not None]
    trials: list[Trial] = []
    for trial in filter(None, (_trial(part.tree, point) for point in allowed)):
        if trial.experiment is not None and trial.experiment.trainer.is_script:  # no axis changes what its figures are
            return f"The axes make {size}."
        trials.append(trial)
    fitting = sum(trial.estimate is not None and trial.estimate.fits for trial in trials)
    kept = f"{len(allowed)} keep the constraints, " if any(space.constraints for space in spaces) else ""
    return f"The axes make {size}. Of {NUM_DRAWN} that were drawn, {kept}{len(trials)} can exist and {fitting} fit."


def _trial(tree: Tree, point: Point) -> Trial | None:
    try:
        trial = trial_of(tree, point, "")
    except ConfigError:
        return None
    return trial if trial.experiment is not None else None
