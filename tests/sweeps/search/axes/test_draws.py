"""What was tried is told to a search as the choices that lead there, and only where choices do."""

from __future__ import annotations

import warnings
from itertools import product

import numpy as np
import pytest
from optuna.trial import create_trial

from conf.compose.complaints import validate
from conf.types.schema import Value
from conf.types.sweep_spec import PointSet
from sweeps.points.axes import spaces_of
from sweeps.search.axes.draws import RandomChooser, choices_of, draw_point
from sweeps.search.axes.samplers import distributions

TREE = {"a": 0, "b": 0}


@pytest.mark.parametrize(
    ("axis", "value", "is_choice"),
    [
        ({"low": 4, "high": 64, "step": 12}, 16, True),
        ({"low": 4, "high": 64, "step": 12}, 8, False),
        ({"low": 4, "high": 63, "step": 12}, 63, False),
        ({"low": 4, "high": 64}, 8, True),
        ({"low": 4, "high": 64}, 8.5, False),
        ({"low": 4, "high": 64, "log": True}, 8.5, False),
        ({"low": 0.1, "high": 0.7, "step": 0.2}, 0.7, True),
        ({"low": 0.25, "high": 1.1, "step": 0.5}, 1.0, False),
        ({"low": 1e-5, "high": 1e-1, "log": True}, 1.23456e-3, True),
    ],
)
def test_a_tried_value_between_the_steps_of_a_range_is_none_of_its_choices(
    axis: dict[str, Value], value: Value, is_choice: bool
) -> None:
    spaces = spaces_of(validate(PointSet, {"axes": {"a": axis}, "points": [], "baseline": {}}), TREE, {})
    choices = choices_of(spaces, {"a": value})
    assert (choices is not None) == is_choice
    if choices is not None:
        with warnings.catch_warnings(action="ignore"):
            known = distributions(spaces)
            create_trial(value=1.0, params=choices, distributions={name: known[name] for name in choices})


def test_steps_lead_up_to_the_higher_end_whatever_binary_fractions_add() -> None:
    lows, steps = (0.0, 0.1, 0.3, 0.05, 1.1, -0.7), (0.1, 0.3, 0.05, 0.15, 0.7, 1e-6)
    for low, step, count in product(lows, steps, (2, 3, 5, 7, 12)):
        axis: dict[str, Value] = {"low": low, "high": float(f"{low + count * step:.12g}"), "step": step}
        spaces = spaces_of(validate(PointSet, {"axes": {"a": axis}, "points": [], "baseline": {}}), TREE, {})
        known = distributions(spaces)  # an end between two steps makes Optuna warn, which fails here
        dimension = spaces[0].dimensions[0]
        assert dimension.axis is not None
        values = dimension.axis.grid_values or ()
        assert len(values) == count + 1
        for value in values:
            create_trial(value=1.0, params=choices_of(spaces, {"a": value}), distributions={"0:a": known["0:a"]})
        chooser = RandomChooser(np.random.default_rng(0))
        drawn = {point["a"] for _ in range(20) if (point := draw_point(spaces, chooser)) is not None}
        assert drawn <= set(values)


def test_a_tried_point_at_which_a_value_cannot_be_computed_is_no_choice() -> None:
    axes = {"a": [0, 1], "b": "=1 / a"}
    spaces = spaces_of(validate(PointSet, {"axes": axes, "points": [], "baseline": {}}), TREE, {})
    assert choices_of(spaces, {"a": 1, "b": 1.0}) == {"0:a": 1}
    assert choices_of(spaces, {"a": 0, "b": 1.0}) is None
