"""Blocks of axes made ready for a configuration: what depends on what, and every point of the grid."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from conf.compose.settings import Settings
from conf.compose.tree import PARAMS, Tree, has_key, nearest_key, part_at, value_after, value_at
from conf.errors import ConfigError, InfeasiblePlan
from conf.nearest import most_like
from conf.plan.experiment import Experiment, ExperimentParts
from conf.plan.knobs import remedy_for
from conf.types.axes import AxisBlock, SweepAxis, expression_in
from conf.types.expression import BadExpression, Expression, parse_expression
from conf.types.schema import FOLLOWING, Value, followed
from conf.types.sweep_spec import PointSet
from conf.types.trainer_spec import PARAM
from sweeps.planner.choosing.objectives import steps_for

Point = dict[str, Value]
ValuesTogether = tuple[Value, ...]
FLAGS = "trainer.flags"
OWN_PARAM = re.compile(re.escape(PARAMS) + PARAM.pattern, re.ASCII)
"""A key that an axis alone may give: a value of the program's own."""
DERIVED = "data_parallel_size"
MODEL_PARALLEL = tuple(f"parallel.{axis}_parallel_size" for axis in ("tensor", "pipeline", "context"))
"""The sizes that are between the number of devices and `DERIVED`, a name of expressions that is no key."""
BEHIND_NULL = {f"training.{name}": (f"training.{of}", rule) for name, (of, rule) in FOLLOWING.items()}
"""What a null of these keys follows from, and how."""
TELLS_NOTHING_APART = {*Settings.model_fields} - {*ExperimentParts.model_fields} | {"cluster", "watch"}
"""Groups of which no fingerprint has anything, so that trials that differ in them alone are one, as those do whose logs
are read in other ways."""
LOG = "trainer.log."
EACH = "Each value can be a sweep of its own."


@dataclass(frozen=True)
class Dimension:
    """One key, or several keys that take their values side by side.

    Attributes:
        rows: what the keys may take together; None of a continuous range.
        axis: of a single key that varies over a range; None of a list.
    """

    keys: tuple[str, ...]
    rows: tuple[ValuesTogether, ...] | None
    axis: SweepAxis | None = None
    when: Expression | None = None

    @property
    def name(self) -> str:
        return ",".join(self.keys)

    @cached_property
    def needs(self) -> frozenset[str]:
        """The names that have to be known before this dimension takes a value."""
        expressions = [expression_in(value) for row in self.rows or () for value in row]
        return frozenset(name for each in (self.when, *expressions) if each for name in each.names)


@dataclass(frozen=True)
class AxisSpace:
    """One block of axes over one configuration; a dimension comes after those that it needs, else as in the file."""

    dimensions: tuple[Dimension, ...]
    constraints: tuple[Expression, ...]
    tree: Tree

    @classmethod
    def of(cls, block: AxisBlock, tree: Tree, pinned: Mapping[str, Value]) -> AxisSpace:
        """The space of one block of a sweep's axes, without the values that what is pinned leaves out.

        Raises ConfigError where an expression names an unknown key, or axes depend on each other in a circle.
        """
        axes = [_dimension(key, axis, pinned) for key, axis in block.axes.items()]
        zipped = [Dimension(tuple(group), _rows_with(group, pinned)) for group in block.zip]
        constraints = tuple(parse_expression(text) for text in block.constraints)
        space = cls(tuple(_in_order_of_need([*axes, *zipped])), constraints, tree)
        space._require_known_names()
        return space

    @property
    def num_combinations(self) -> float:
        """Points of the grid, conditions and constraints aside; infinite where a range is continuous."""
        return math.prod(math.inf if dimension.rows is None else len(dimension.rows) for dimension in self.dimensions)

    def grid(self, leave_out: tuple[type[ConfigError], ...] = ()) -> Iterator[Point]:
        """Every point that the constraints allow, the first axis varying slowest; of no continuous range.

        A point with one of these errors, such as a division by zero, is left out instead of ending the grid.
        """
        yield from self._from({}, 0, leave_out)

    def _from(self, point: Point, depth: int, leave_out: tuple[type[ConfigError], ...]) -> Iterator[Point]:
        if depth == len(self.dimensions):
            if self.allows(point):
                yield point
            return
        dimension = self.dimensions[depth]
        if not self.exists(dimension, point):
            yield from self._from(point, depth + 1, leave_out)
            return
        for row in dimension.rows or ():
            with suppress(*leave_out):
                yield from self._from(point | self.resolve(dimension, row, point), depth + 1, leave_out)

    def exists(self, dimension: Dimension, point: Point) -> bool:
        """True if the condition of a dimension holds at a point that has all that it needs."""
        return dimension.when is None or bool(self._compute(dimension.when, point, f"{dimension.name}.when"))

    def resolve(self, dimension: Dimension, row: ValuesTogether, point: Point) -> Point:
        """The values of a row, with those computed that follow from others."""
        return {key: self.plain(value, point, f"axes.{key}") for key, value in zip(dimension.keys, row, strict=True)}

    def plain(self, value: Value, point: Point, key: str) -> Value:
        expression = expression_in(value)
        return value if expression is None else self._compute(expression, point, key)

    def allows(self, point: Point) -> bool:
        return all(self._compute(constraint, point, "constraints") for constraint in self.constraints)

    def _compute(self, expression: Expression, point: Point, key: str) -> Value:
        try:
            return expression.value(lambda name: value_in(name, point, self.tree))
        except BadExpression as bad:
            at = " at " * bool(point) + ", ".join(f"{name}={value}" for name, value in point.items())
            raise ConfigError(f"sweep.{key}", expression.text, f"{bad.problem}{at}", bad.remedy) from None

    def _require_known_names(self) -> None:
        used = frozenset[str]().union(*(dimension.needs for dimension in self.dimensions))
        for dimension in self.dimensions:
            for key in dimension.keys:
                if not (has_key(self.tree, key) or OWN_PARAM.fullmatch(key)):
                    raise ConfigError("sweep.axes", key, "is not a key of the configuration", self._remedy(key))
                if "." not in key and isinstance(part := part_at(self.tree, key), dict):
                    # An axis over a name would do nothing, and one over a key of such a group is refused.
                    inner = f"{key}.{next((name for name in part if name != 'name'), 'KEY')}"
                    remedy = EACH if _tells_nothing_apart(key) else f"Vary a key in it, such as {inner}."
                    raise ConfigError("sweep.axes", key, "is a group, and an axis has the values of one key", remedy)
            if not used.intersection(dimension.keys) and all(map(_tells_nothing_apart, dimension.keys)):
                problem = "changes nothing of what a trial measures, so that all its values would be one trial"
                remedy = f"Leave it out, or let another axis follow from it. {EACH}"
                raise ConfigError("sweep.axes", dimension.name, problem, remedy)
            self._require_names(f"sweep.axes.{dimension.name}", dimension.needs)
        for number, constraint in enumerate(self.constraints):
            self._require_names(f"sweep.constraints.{number}", frozenset(constraint.names))

    def _remedy(self, key: str) -> str:
        """What to do about a key that is not one; a flag of a program has to stand in its file before it is swept."""
        flag = key.removeprefix(f"{FLAGS}.")
        if flag != key and "." not in flag and isinstance(part_at(self.tree, FLAGS), dict):
            likely = most_like(flag, list(part_at(self.tree, FLAGS)))
            meant = "" if likely is None else f" Or did you mean {FLAGS}.{likely}?"
            return f"Write `{flag}: null` under {FLAGS}, and the axis sets it.{meant}"
        return remedy_for(key) or nearest_key(_tree_without_sweep(self.tree), key)

    def _require_names(self, where: str, names: frozenset[str]) -> None:
        for name in sorted(names - {DERIVED}):
            if not has_key(self.tree, name) or isinstance(part_at(self.tree, name), dict):
                remedy = nearest_key(_tree_without_sweep(self.tree), name, DERIVED)
                raise ConfigError(where, name, "is not a key of the configuration that has a single value", remedy)


def _tells_nothing_apart(key: str) -> bool:
    return key.partition(".")[0] in TELLS_NOTHING_APART or key.startswith(LOG)


def _tree_without_sweep(tree: Tree) -> Tree:
    """The configuration without the sweep's own keys: `sweep.axes.KEY` would be nearest to each misspelt KEY."""
    return {key: part for key, part in tree.items() if key != "sweep"}


def value_in(name: str, point: Point, tree: Tree) -> Value:
    """Return the value of a name in an expression: the point's value, else the configuration's."""
    if name == DERIVED:
        sizes = [value_in(key, point, tree) for key in MODEL_PARALLEL]
        world_size = value_in("parallel.world_size", point, tree)
        # Sizes that do not divide make the plan infeasible, which the plan's own checks say better than a 0 here.
        return max(1, _product([world_size]) // max(1, _product(sizes)))
    value = value_after(tree, point, name)
    if name == NUM_STEPS and (steps := budgeted_steps(tree, lambda key: value_in(key, point, tree))) is not None:
        return steps
    if name == "parallel.world_size" and value is None:
        return _product(value_in(f"cluster.{key}", point, tree) for key in ("num_nodes", "devices_per_node"))
    if value is None and name in BEHIND_NULL:
        return followed(value_in(BEHIND_NULL[name][0], point, tree), BEHIND_NULL[name][1])
    return value


def _product(sizes: Iterable[Value]) -> int:
    return math.prod(size for size in sizes if isinstance(size, int))


def _dimension(key: str, axis: SweepAxis, pinned: Mapping[str, Value]) -> Dimension:
    if key in pinned:
        return Dimension((key,), ((pinned[key],),))
    rows = None if axis.grid_values is None else tuple((value,) for value in axis.grid_values)
    return Dimension(
        (key,), rows, axis if axis.values is None else None, parse_expression(axis.when) if axis.when else None
    )


def _rows_with(group: Mapping[str, Sequence[Value]], pinned: Mapping[str, Value]) -> tuple[ValuesTogether, ...]:
    """The rows of keys that go side by side which have the pinned values, as far as these are not computed."""
    return tuple(
        row
        for row in zip(*group.values(), strict=True)
        if all(value == pinned.get(key, value) or expression_in(value) for key, value in zip(group, row, strict=True))
    )


def _in_order_of_need(dimensions: list[Dimension]) -> Iterator[Dimension]:
    """The dimensions, each as early as what it needs allows."""
    waiting = list(dimensions)
    while waiting:
        open_keys = {key for dimension in waiting for key in dimension.keys}
        ready = next((each for each in waiting if not _needed_keys(each) & open_keys), None)
        if ready is None:
            names = sorted(open_keys)
            remedy = "Let one of them have values that need none of the others."
            raise ConfigError("sweep.axes", ", ".join(names), "depend on each other in a circle", remedy)
        waiting.remove(ready)
        yield ready


def _needed_keys(dimension: Dimension) -> frozenset[str]:
    behind = {DERIVED: ("parallel.world_size", *MODEL_PARALLEL), NUM_STEPS: NEEDED}
    needs = dimension.needs | {BEHIND_NULL[name][0] for name in dimension.needs if name in BEHIND_NULL}
    return needs.union(*(behind.get(name, ()) for name in needs))


def _without_number(dimension: Dimension) -> ConfigError:
    assert dimension.axis is not None
    stated = dimension.axis.model_dump(exclude_defaults=True)
    problem = "is a continuous range, and a grid takes single values"
    remedy = "Give `num`, the number of values, or `step`; or search the range with search=random or search=bayes."
    return ConfigError(f"sweep.axes.{dimension.name}", stated, problem, remedy)


NUM_STEPS = "training.num_steps"
NEEDED = ("batch.global_batch_size", "model.seq_length")
"""The keys from which the number of steps follows, where tokens are given."""


def budgeted_steps(tree: Tree, value_of: Callable[[str], Value]) -> int | None:
    """The steps that `search.tokens` takes at a point, rounded up; None where no tokens are given."""
    tokens = part_at(tree, "search.tokens")
    sizes = [value_of(key) for key in NEEDED]
    if tokens is None or not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    batch, sequence = (int(size or 1) for size in sizes)
    return steps_for(int(tokens), batch * sequence)


def require_whole_step(tokens: Value, experiment: Experiment) -> None:
    """Raises InfeasiblePlan where a single step has more tokens than every trial is to have."""
    one_step = experiment.batch.global_batch_size * experiment.model.seq_length
    if isinstance(tokens, int | float) and tokens < one_step:
        problem = f"is less than the {one_step} of one step, {' x '.join(NEEDED)}"
        raise InfeasiblePlan("search.tokens", tokens, problem, f"Use {one_step} or more, or a smaller batch.")


def require_last_step_evaluated(experiment: Experiment) -> None:
    """Refuse a trial whose last held-out loss would be of an earlier step, after fewer tokens than those of others.

    Raises InfeasiblePlan where the evaluations miss the last step.
    """
    training = experiment.training
    if training.evaluate_every is not None and training.num_steps % training.evaluate_every:
        problem = f"leaves the last of training.num_steps = {training.num_steps} without evaluation"
        remedy = "Use a divisor, or the axis `training.evaluate_every: =training.num_steps`, or null."
        raise InfeasiblePlan("training.evaluate_every", training.evaluate_every, problem, remedy)


MOST_COMBINATIONS = 2_000_000
"""The most combinations that a grid goes through, which takes ten seconds."""
MOST_POINTS = 10_000
"""The most points of a grid that are estimated one by one, which takes fifteen seconds."""


def spaces_of(point_set: PointSet, tree: Tree, pinned: Mapping[str, Value]) -> list[AxisSpace]:
    """The blocks of axes, each over this configuration; without those that have no point with what is pinned."""
    spaces = [AxisSpace.of(block, tree, pinned) for block in point_set.blocks]
    return [space for space in spaces if all(dimension.rows != () for dimension in space.dimensions)]


def expand(point_set: PointSet, tree: Tree, pinned: Mapping[str, Value]) -> list[Point]:
    """Every point once: the baseline first, then the grid of each block of axes, then the listed points. A sweep that
    states none of these has one, the configuration itself.

    Of what the user pinned, points of another value are left out. Raises ConfigError where no point is left, or there
    are too many to go through.
    """
    spaces = spaces_of(point_set, tree, pinned)
    for space in spaces:
        for dimension in space.dimensions:
            if dimension.rows is None:  # nobody knows which values of a continuous range a grid is to take
                raise _without_number(dimension)
    _require_few(sum(space.num_combinations for space in spaces), MOST_COMBINATIONS, "combinations")
    points = list(_distinct(_all_points(point_set, spaces, tree), tree, pinned))
    _require_few(len(points), MOST_POINTS, "points")
    if not points:
        shown = ", ".join(f"{key}={value}" for key, value in pinned.items())
        raise ConfigError("sweep.points", shown, "leaves no point of the sweep", "Drop an override, or add a point.")
    return points


def stated_points(point_set: PointSet, tree: Tree, pinned: Mapping[str, Value]) -> list[Point]:
    """The baseline and the listed points, without the axes; empty where what is pinned leaves none."""
    stated = (point for point in (baseline_of(point_set, tree), *_listed(point_set, tree)) if point is not None)
    return list(_distinct(iter(stated), tree, pinned))


def every_point(point_set: PointSet, tree: Tree, pinned: Mapping[str, Value], *, whole_grid: bool) -> Iterator[Point]:
    """Points one after another, as they come; a caller who wants a few does not wait for a large grid.

    Those of the whole grid are on the axes too, of which a continuous range lists none.
    """
    spaces = spaces_of(point_set, tree, pinned) if whole_grid else []
    listed = [space for space in spaces if all(dimension.rows is not None for dimension in space.dimensions)]
    return _distinct(_all_points(point_set, listed, tree), tree, pinned)


def baseline_of(point_set: PointSet, tree: Tree) -> Point | None:
    """The baseline, with those values computed that follow from others; None where there is none."""
    return None if point_set.baseline is None else _plain(point_set.baseline, tree)


def _all_points(point_set: PointSet, spaces: list[AxisSpace], tree: Tree) -> Iterator[Point]:
    baseline = baseline_of(point_set, tree)
    if baseline is not None or not (point_set.blocks or point_set.points):
        yield baseline or {}
    for space in spaces:
        yield from space.grid()
    yield from _listed(point_set, tree)


def _listed(point_set: PointSet, tree: Tree) -> Iterator[Point]:
    return (_plain(point, tree) for point in point_set.points)


def _plain(point: Mapping[str, Value], tree: Tree) -> Point:
    """A listed point, with those values computed that follow from others."""
    given = {key: value for key, value in point.items() if expression_in(value) is None}
    everywhere = AxisSpace((), (), tree)
    computed = {key: everywhere.plain(value, given, f"points.{key}") for key, value in point.items()}
    return {key: computed[key] for key in point}


def _distinct(points: Iterator[Point], tree: Tree, pinned: Mapping[str, Value]) -> Iterator[Point]:
    """Each point once that has the pinned values. Pinning an axis makes the points along it equal."""
    seen = set[tuple[tuple[str, object], ...]]()
    for point in points:
        # The kind counts, because Python takes 1, 1.0 and True for the same, and the configuration does not.
        content = tuple(sorted((key, (type(value), value)) for key, value in point.items()))
        if content in seen:
            continue
        seen.add(content)
        if all((point[key] if key in point else value_at(tree, key)) == value for key, value in pinned.items()):
            yield point


def _require_few(number: float, most: int, what: str) -> None:
    if number > most:
        remedy = "Use fewer values, tighter constraints, or a search that lists nothing: search=random or search=bayes."
        raise ConfigError("sweep.axes", f"{number:,.0f} {what}", f"are more than the {most:,} of a grid", remedy)
