"""Expressions over configuration keys, as sweep files write them: conditions, constraints, and values that follow.

An expression is walked node by node and never handed to Python's `eval`: it can compute and compare, and run nothing.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from conf.types.schema import Value

Lookup = Callable[[str], Value]
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
    """A text such as `parallel.tensor_parallel_size * parallel.pipeline_parallel_size <= 64`, read once."""

    text: str
    root: ast.expr

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The dotted keys that it mentions, each once, in alphabetic order."""
        return tuple(sorted(_names(self.root)))

    def value(self, lookup: Lookup) -> Value:
        """The value of the expression, given the values of its keys.

        Raises BadExpression where it divides by zero, or compares or computes with values of the wrong kind.
        """
        try:
            result = _value(self.root, lookup)
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
    _require_allowed(root)
    return Expression(text, root)


def _require_allowed(root: ast.expr) -> None:
    """Refuse everything that the walk below does not know, before any value is computed."""
    for node in ast.walk(root):
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None):
                continue
            # Without this list a file of a sweep, which may be somebody else's, could call anything that Python can.
            case ast.Call(func=ast.Name(id=name), keywords=[]) if name in FUNCTIONS:
                continue
            case ast.Attribute() if _dotted_name(node):
                continue
            case ast.BinOp(op=op) if type(op) in ARITHMETIC:
                continue
            case ast.Name() | ast.BoolOp() | ast.UnaryOp(op=ast.Not() | ast.USub() | ast.UAdd()) | ast.Compare():
                continue
            case ast.IfExp() | ast.List() | ast.Tuple() | ast.expr_context() | ast.boolop() | ast.unaryop():
                continue
            case ast.operator() | ast.In() | ast.NotIn():
                continue
            case ast.cmpop() if type(node) in COMPARISONS:
                continue
        source = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
        raise BadExpression(f"holds `{source}`, which is not allowed in an expression", GRAMMAR)


def _dotted_name(node: ast.expr) -> str:
    """`a.b.c` for such a chain of names; empty for anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=inner, attr=last):
            parent = _dotted_name(inner)
            return f"{parent}.{last}" if parent else ""
    return ""


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Attribute):
        return {_dotted_name(node)}
    if isinstance(node, ast.Name):
        return set() if node.id in WORDS else {node.id}
    children = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
    return {name for child in children for name in _names(child)}


def _value(node: ast.expr, lookup: Lookup) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=word) if word in WORDS:
            return WORDS[word]
        case ast.Name() | ast.Attribute():
            return lookup(_dotted_name(node))
        case ast.List(elts=entries) | ast.Tuple(elts=entries):
            return tuple(_value(entry, lookup) for entry in entries)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return FUNCTIONS[name](*(_number(_value(argument, lookup)) for argument in arguments))
        case ast.IfExp(test=test, body=body, orelse=otherwise):
            return _value(body if _value(test, lookup) else otherwise, lookup)
    return _value_of_operation(node, lookup)


def _value_of_operation(node: ast.expr, lookup: Lookup) -> Any:
    match node:
        case ast.BoolOp(op=op, values=parts):
            joined = all if isinstance(op, ast.And) else any
            return joined(bool(_value(part, lookup)) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, lookup)
        case ast.UnaryOp(op=sign, operand=operand):
            number = _number(_value(operand, lookup))
            return -number if isinstance(sign, ast.USub) else number
        case ast.BinOp(left=left, op=op, right=right):
            return ARITHMETIC[type(op)](_number(_value(left, lookup)), _number(_value(right, lookup)))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            values = [_value(term, lookup) for term in (left, *comparators)]
            pairs = zip(ops, values[:-1], values[1:], strict=True)
            return all(COMPARISONS[type(op)](one, other) for op, one, other in pairs)
    raise AssertionError(f"{type(node).__name__} was let through")
