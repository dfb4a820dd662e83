"""Sums of whole numbers in a script, worked out without running anything."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

SUM = re.compile(r"[\d\s*/%+()-]{1,100}")
NAME = re.compile(r"\$?\{?\b([A-Za-z_]\w*)\b\}?")
OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
LARGEST = 10**15


def sum_of(text: str, variables: Mapping[str, str]) -> str | None:
    """What a sum such as `NODES * 8 / (TP * PP)` comes to; None where it is none, or the script does not set all of it.

    Args:
        variables: values by the names that stand in the sum, with or without `$`.
    """
    named = NAME.sub(lambda name: variables.get(name[1]) or name[0], text.replace("\\", ""))
    if not SUM.fullmatch(named) or "**" in named or not re.search(r"\d", named):
        return None
    try:
        return str(_value(ast.parse(re.sub("/+", "//", named).strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        value = OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = -_value(node.operand)
    else:
        raise ValueError(ast.dump(node))
    if abs(value) > LARGEST:
        raise ValueError(value)
    return value
