"""Expressions compute and compare over dotted keys, and can do nothing else."""

from __future__ import annotations

import pytest

from conf.types.expression import BadExpression, parse_expression
from conf.types.schema import Value
from tests.messages import refused

VALUES: dict[str, Value] = {"a.x": 4, "a.y": 6, "flag": True, "word": "full", "nothing": None, "rate": 0.5}


def value_of(text: str) -> Value:
    return parse_expression(text).value(VALUES.__getitem__)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.x * a.y <= 24", True),
        ("2 < a.x < 4", False),
        ("a.y - a.x + 1", 3),
        ("a.x / 2", 2),
        ("a.y / 4", 1.5),
        ("a.y // 4 + a.y % 4", 3),
        ("rate * 4 ** -0.5", 0.25),
        ("-a.x", -4),
        ("flag and not a.x == 4", False),
        ("flag or a.x / 0", True),
        ("word == 'full' and word != 'none'", True),
        ("word in ['none', 'full']", True),
        ("a.x not in (1, 2)", True),
        ("nothing == null and flag == true", True),
        ("1 if word == 'none' else a.y", 6),
        ("min(a.x, a.y) + max(1, 2) + abs(-1) + round(1.6) + ceil(0.1) + floor(0.9)", 10),
    ],
)
def test_an_expression_comes_to_what_python_says(text: str, value: Value) -> None:
    assert value_of(text) == value
    assert type(value_of(text)) is type(value)


def test_an_expression_names_the_keys_that_it_needs() -> None:
    assert parse_expression("a.x * a.y <= max(a.x, batch) and flag == true").names == ("a.x", "a.y", "batch", "flag")


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "().__class__",
        "[n for n in (1, 2)]",
        "(lambda: 1)()",
        "a.x.real()",
        "a['x']",
        "f'{a.x}'",
        "print(1)",
        "min(1, key=a.x)",
        "min(*a.x)",
        "a.x is 4",
        "(b := 1)",
        "{1: 2}",
        "...",
        "b'x'",
        "1j",
        "a.x @ a.y",
        "a.x << 99",
        "~a.x",
        "await a.x",
    ],
)
def test_what_is_more_than_arithmetic_and_comparison_is_refused_before_anything_runs(text: str) -> None:
    with refused(BadExpression):
        parse_expression(text)


@pytest.mark.parametrize("text", ["", "a.x +", "a b", "(" * 200, "a.x; a.y", "\x00"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with refused(BadExpression):
        parse_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "1 / 0",
        "word * 3",
        "nothing < 3",
        "9 ** 9 ** 9",
        "(-8) ** 0.5",
        "[1, 2]",
        "min(1)",
        "2.0 ** 64 * 1e308",
    ],
)
def test_what_cannot_be_computed_says_why(text: str) -> None:
    with refused(BadExpression):
        value_of(text)


def test_long_texts_are_refused_so_that_their_depth_is_bounded() -> None:
    assert value_of("-" * 300 + "1") == 1
    with refused(BadExpression):
        parse_expression("-" * 400 + "1")
