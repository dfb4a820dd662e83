"""Expressions over configuration keys, as sweep files write them: conditions, constraints, and values that follow.

An expression is walked node by node and never handed to Python's `eval`: it can compute and compare, and run nothing.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from conf.types.schema import Value

Lookup = Callable[[str], Value]
Compute = Callable[[Lookup], Any]
MOST_CHARACTERS = 400
"""Longer texts are refused, so that no depth of brackets can exhaust the stack."""
MOST_EXPONENT, MOST_BASE = 64, 10**18
"""Larger powers are refused: Python would compute numbers of any length."""
WORDS: Mapping[str, Value] = {"true": True, "false": False, "null": None, "none": None}
"""Constants as YAML spells them, beside Python's own."""
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "round": round,
    "floor": math.floor,
    "ceil": math.ceil,
}


def _number(value: Any) -> Any:
    # A word times a number would be a longer word, up to any length.
    if isinstance(value, int | float):
        return value
    raise TypeError(f"{value!r} is not a number")


def _quotient(left: float, right: float) -> float:
    """A quotient that comes out even stays whole, since sizes and counts have to be whole numbers."""
    if isinstance(left, int) and isinstance(right, int) and left % right == 0:
        return left // right
    return left / right


def _power(base: float, exponent: float) -> Any:
    if abs(exponent) > MOST_EXPONENT or abs(base) > MOST_BASE:
        raise ValueError(f"powers above {MOST_EXPONENT} or of numbers above {MOST_BASE:.0e} are not computed")
    power = base**exponent
    if isinstance(power, complex):
        raise ValueError("the root of a negative number")
    return power


ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
SIGNS: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: lambda value: -_number(value),
    ast.UAdd: _number,
}
GRAMMAR = (
    "Use dotted keys, numbers, quoted words, + - * / // % **, comparisons, `in [..]`, and, or, not, `a if b else c` and"
    f" {', '.join(FUNCTIONS)}."
)


class BadExpression(Exception):
    """An expression that cannot be read or computed. Who knows its dotted key makes a `ConfigError` of it."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem, self.remedy = problem, remedy


@dataclass(frozen=True)
class Expression:
    """A text such as `parallel.tensor_parallel_size * parallel.pipeline_parallel_size <= 64`, read once.

    Attributes:
        names: the dotted keys that it mentions, each once, in alphabetic order.
        compute: its value, given those of its keys.
    """

    text: str
    names: tuple[str, ...]
    compute: Compute

    def value(self, lookup: Lookup) -> Value:
        """The value of the expression, given the values of its keys.

        Raises BadExpression where it divides by zero, or compares or computes with values of the wrong kind.
        """
        try:
            result = self.compute(lookup)
        except ZeroDivisionError:
            raise BadExpression("divides by zero", "Guard it, as in `a / b if b else 0`.") from None
        except (TypeError, ValueError, OverflowError) as error:
            values = "".join(f", {name} = {lookup(name)}" for name in self.names)
            raise BadExpression(f"cannot be computed: {error}{values}", GRAMMAR) from None
        if isinstance(result, float) and not math.isfinite(result):
            raise BadExpression(f"has the value {result}", "Use values whose result is a finite number.")
        if not isinstance(result, bool | int | float | str | None):
            raise BadExpression("is a list, and a single value is needed", GRAMMAR)
        return result


@cache
def parse_expression(text: str) -> Expression:
    """The expression that a text states.

    Raises BadExpression where the text is too long, is not an expression, or does what none may do.
    """
    if len(text) > MOST_CHARACTERS:
        problem = f"is an expression of more than {MOST_CHARACTERS} characters"
        raise BadExpression(problem, "Split it: every entry of `constraints` has to hold.")
    try:
        root = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise BadExpression("is not an expression", GRAMMAR) from None
    names = set[str]()
    compute = _compiled(root, names)
    return Expression(text, tuple(sorted(names)), compute)


def _compiled(node: ast.expr, names: set[str]) -> Compute:
    """What computes a node. What no case knows is refused before any value is computed.

    Else a file of a sweep, which may be somebody else's, could call anything that Python can.

    Args:
        names: gets the dotted keys that are mentioned.
    """
    match node:
        case ast.Constant(value=(bool() | int() | float() | str() | None) as value):
            return lambda _: value
        case ast.Name(id=word) if word in WORDS:
            return lambda _: WORDS[word]
        case ast.Name() | ast.Attribute() if key := _dotted_name(node):
            names.add(key)
            return lambda lookup: lookup(key)
        case ast.List(elts=entries) | ast.Tuple(elts=entries):
            each = [_compiled(entry, names) for entry in entries]
            return lambda lookup: tuple(compute(lookup) for compute in each)
        case ast.Call(func=ast.Name(id=name), args=entries, keywords=[]) if name in FUNCTIONS:
            each = [_compiled(entry, names) for entry in entries]
            return lambda lookup: FUNCTIONS[name](*(_number(compute(lookup)) for compute in each))
        case ast.IfExp():
            test, body, otherwise = (_compiled(part, names) for part in (node.test, node.body, node.orelse))
            return lambda lookup: (body if test(lookup) else otherwise)(lookup)
    return _compiled_operation(node, names)


def _compiled_operation(node: ast.expr, names: set[str]) -> Compute:
    match node:
        case ast.BoolOp(op=op, values=parts):
            each, joined = [_compiled(part, names) for part in parts], all if isinstance(op, ast.And) else any
            return lambda lookup: joined(bool(compute(lookup)) for compute in each)
        case ast.UnaryOp(op=op, operand=operand) if (operation := SIGNS.get(type(op))) is not None:
            compute = _compiled(operand, names)
            return lambda lookup: operation(compute(lookup))
        case ast.BinOp(left=left, op=op, right=right) if (binary := ARITHMETIC.get(type(op))) is not None:
            one, other = _compiled(left, names), _compiled(right, names)
            return lambda lookup: binary(_number(one(lookup)), _number(other(lookup)))
        case ast.Compare(left=left, ops=ops, comparators=terms) if all(type(op) in COMPARISONS for op in ops):
            each, tests = [_compiled(term, names) for term in (left, *terms)], [COMPARISONS[type(op)] for op in ops]

            def holds(lookup: Lookup) -> bool:
                values = [compute(lookup) for compute in each]
                return all(test(*pair) for test, pair in zip(tests, pairwise(values), strict=True))

            return holds
    raise BadExpression(f"holds `{ast.unparse(node)}`, which is not allowed in an expression", GRAMMAR)


def _dotted_name(node: ast.expr) -> str:
    """`a.b.c` for such a chain of names; empty for anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=inner, attr=last):
            parent = _dotted_name(inner)
            return f"{parent}.{last}" if parent else ""
    return ""
