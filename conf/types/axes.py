"""The axes of a sweep, as its file states them: lists and ranges, alone, side by side, and on conditions.

axes:
  parallel.tensor_parallel_size: [1, 2, 4]                                   # a list
  training.learning_rate: {low: 1.0e-5, high: 1.0e-3, log: true, num: 5}     # a range
  batch.global_batch_size: =8 * batch.micro_batch_size * data_parallel_size  # a value that follows from others
  parallel.virtual_pipeline_size: {values: [2, 4], when: parallel.schedule == 'interleaved'}  # a conditional axis
zip:
  - {model.num_layers: [12, 24], model.hidden_size: [2048, 1024]}            # axes that go side by side
constraints:
  - parallel.tensor_parallel_size * parallel.pipeline_parallel_size <= 64
spaces:                                                                      # further blocks, one after another
  - axes: {parallel.recompute: [none, selective, full]}
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from conf.types.expression import BadExpression, Expression, parse_expression
from conf.types.schema import Frozen, Value, refusal

EXPRESSION_SIGN = "="
"""The mark at the beginning of a value that is computed from other keys."""
MOST_VALUES = 100_000
"""The most values of one axis that are listed."""
GRID_DIGITS = 6
"""Significant digits of a value between the ends of a range, to which no step leads."""


def expression_in(value: Value) -> Expression | None:
    """The expression of a value that follows from other keys; None of a plain value."""
    if not isinstance(value, str) or not value.startswith(EXPRESSION_SIGN):
        return None
    return parse_expression(value.removeprefix(EXPRESSION_SIGN))


class SweepAxis(Frozen):
    """The values that one key takes: those that are listed, or those between two ends.

    Attributes:
        values: the values themselves. One that begins with `=` is computed from other keys.
        low, high: the two ends of a range, both of them part of it.
        log: a range is even in the logarithm.
        step: between two values of a range; null where it is continuous.
        num: how many values of a range a grid takes; searches draw from the whole range.
        when: the axis exists only where this holds; elsewhere the key keeps the value of the configuration.
    """

    values: Annotated[tuple[Value, ...], Field(strict=False, min_length=1)] | None = None
    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    step: int | float | None = None
    num: Annotated[int, Field(ge=2, le=MOST_VALUES)] | None = None
    when: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _list_is_short_for_values(cls, stated: Any) -> Any:
        if isinstance(stated, list | tuple):
            return {"values": stated}
        if isinstance(stated, str):
            if not stated.startswith(EXPRESSION_SIGN):
                remedy = f"Write [{stated}] for a single value, or begin an expression with `{EXPRESSION_SIGN}`."
                raise refusal("is neither a list of values nor an expression", remedy)
            return {"values": [stated]}
        return stated

    @model_validator(mode="after")
    def _is_a_list_or_a_range(self) -> SweepAxis:
        if self.values is None:
            self._require_range()
        elif self.model_dump(exclude={"values", "when"}, exclude_defaults=True):
            raise refusal("mixes a list with a range", "Give either `values`, or `low` and `high`.")
        _require_readable(*(value for value in self.values or () if isinstance(value, str)))
        if self.when is not None:
            _require_readable(f"{EXPRESSION_SIGN}{self.when}")
        return self

    def _require_range(self) -> None:
        if self.low is None or self.high is None:
            raise refusal("has no values", "Give a list such as [1, 2, 4], or a range {low: 1, high: 4}.")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise refusal("does not go from a lower to a higher value", "Give finite numbers, `low` below `high`.")
        if self.log and self.low <= 0:
            raise refusal("is logarithmic, and does not begin above 0", "Give `low` above 0, or leave `log` out.")
        if self.step is not None and (self.log or self.num is not None):
            other = "log" if self.log else "num"
            raise refusal(f"has both `step` and `{other}`", f"Leave one of `step` and `{other}` out.")
        if self.step is not None and not 0 < self.step <= self.high - self.low:
            raise refusal(
                "has a step of 0 or less, or one that is longer than the range",
                "Give `step` above 0, and not above `high` - `low`.",
            )
        if self.step is not None and (self.high - self.low) / self.step > MOST_VALUES:
            raise refusal(f"has more than {MOST_VALUES:,} steps", "Give a larger `step`, or none and `num`.")

    @property
    def follows(self) -> bool:
        """True if any value is computed from other keys."""
        return any(expression_in(value) for value in self.values or ())

    @property
    def is_whole(self) -> bool:
        """True if a range is of whole numbers: its ends and its step were written as such."""
        return all(isinstance(number, int) for number in (self.low, self.high, self.step or 1))

    @property
    def grid_values(self) -> tuple[Value, ...] | None:
        """Every value that a grid takes; None for a continuous range without `num`."""
        if self.values is not None:
            return self.values
        assert self.low is not None
        assert self.high is not None
        if self.num is not None:
            return self._evenly(self.low, self.high, self.num)
        step = self.step or (1 if self.is_whole else None)
        if step is None or (self.high - self.low) / step > MOST_VALUES:
            return None
        return tuple(self.after_steps(count, step) for count in range(self.num_steps(step) + 1))

    def num_steps(self, step: float) -> int:
        """How many steps lead from the lower end to the last value that is not above the higher one."""
        if self.is_whole:
            return int((self.high or 0) - (self.low or 0)) // int(step)
        return int((_as_written(self.high or 0) - _as_written(self.low or 0)) // _as_written(step))

    def after_steps(self, count: int, step: float) -> int | float:
        """The value to which so many steps lead, as a person would write it, without what binary fractions add."""
        low = self.low or 0
        return int(low + count * step) if self.is_whole else float(_as_written(low) + count * _as_written(step))

    def holds(self, value: Value) -> bool:
        assert self.low is not None
        assert self.high is not None
        # Python counts True as 1, and no range means it.
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and self.low <= float(value or 0) <= self.high

    def _evenly(self, low: float, high: float, num: int) -> tuple[Value, ...]:
        shares = [number / (num - 1) for number in range(1, num - 1)]
        between = (low * (high / low) ** share if self.log else low + (high - low) * share for share in shares)
        # Few whole numbers near each other round to the same one.
        return tuple(dict.fromkeys([low, *(self._number(value) for value in between), high]))

    def _number(self, value: float) -> int | float:
        return round(value) if self.is_whole else float(f"{value:.{GRID_DIGITS}g}")


def _as_written(number: float) -> Decimal:
    """The number in decimals: 0.1, where a binary fraction is a little more."""
    return Decimal(str(number))


def _side_by_side(group: dict[str, tuple[Value, ...]]) -> dict[str, tuple[Value, ...]]:
    lengths = {key: len(values) for key, values in group.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{length} of {key}" for key, length in lengths.items())
        raise refusal(f"has lists of different lengths: {counts}", "Give each key as many values.")
    _require_readable(*(value for values in group.values() for value in values))
    return group


def _readable_constraint(text: str) -> str:
    _require_readable(f"{EXPRESSION_SIGN}{text}")
    return text


Listed = Annotated[tuple[Value, ...], Field(strict=False, min_length=1)]
Zipped = Annotated[dict[str, Listed], Field(min_length=1), AfterValidator(_side_by_side)]
Constraint = Annotated[str, AfterValidator(_readable_constraint)]


class AxisBlock(Frozen):
    """A rectangular grid of axes, less what the constraints leave out.

    Attributes:
        axes: by dotted key.
        zip: groups of axes that take their values side by side.
        constraints: expressions, all of which hold at every point of the block.
    """

    axes: dict[str, SweepAxis] = Field(default_factory=dict)
    zip: Annotated[tuple[Zipped, ...], Field(strict=False)] = ()
    constraints: Annotated[tuple[Constraint, ...], Field(strict=False)] = ()

    @field_validator("zip")
    @classmethod
    def _vary_other_keys(cls, groups: tuple[Zipped, ...], others: ValidationInfo) -> tuple[Zipped, ...]:
        keys = [key for group in (others.data.get("axes", {}), *groups) for key in group]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            remedy = "Give each key one axis, or start another block under `spaces`."
            raise refusal(f"varies {twice[0]}, which has another axis", remedy)
        return groups

    @property
    def varies(self) -> bool:
        return bool(self.axes or self.zip)

    def listed_values(self) -> Iterator[tuple[str, Value]]:
        """Every pair of a key and a value that an axis lists."""
        for key, axis in self.axes.items():
            yield from ((key, value) for value in axis.grid_values or (axis.low, axis.high))
        for group in self.zip:
            yield from ((key, value) for key, values in group.items() for value in values)


def _require_readable(*values: Value) -> None:
    for value in values:
        try:
            expression_in(value)
        except BadExpression as bad:
            assert isinstance(value, str)
            raise refusal(f"`{value.removeprefix(EXPRESSION_SIGN)}` {bad.problem}", bad.remedy) from None
