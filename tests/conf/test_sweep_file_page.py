"""The examples of docs/how-to/sweep-file.md are sweeps that can be planned."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from conf.compose.complaints import validate
from conf.types.sweep_spec import PointSet
from sweeps.points.axes import Point, expand
from tests.composed import compose_tree

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "sweep-file.md"
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def points_of(example: str) -> list[Point]:
    tree = compose_tree(["sweep=smoke"])
    return expand(validate(PointSet, {"points": [], "baseline": {}, **yaml.safe_load(example)}), tree, {})


@pytest.mark.parametrize(("example", "num_points"), list(zip(EXAMPLES, (60, 6, 3, 3, 9 + 2), strict=True)))
def test_an_example_of_the_page_has_the_points_that_it_speaks_of(example: str, num_points: int) -> None:
    assert len(points_of(example)) == 1 + num_points  # and the baseline


def test_values_that_follow_have_followed() -> None:
    assert points_of(EXAMPLES[0])[1]["training.learning_rate_warmup_steps"] == 0  # of smoke's four steps
    assert [point["model.ffn_hidden_size"] for point in points_of(EXAMPLES[2])[1:]] == [256, 192, 128]
