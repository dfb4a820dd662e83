"""Python files that are configurations: assignments, keywords of calls, defaults of flags. Nothing of them is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from conf.errors import ConfigError
from diagnose.readers.said import says
from diagnose.readers.sums import sum_of
from diagnose.readers.text import KEY, at
from diagnose.runs import SaidBy, UserRun


def read_python(run: UserRun, source: str, text: str) -> None:
    """Take down what a file assigns and hands over; defaults of an argparse parser are believed least.

    Raises:
        ConfigError: it is not Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        said = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)[:150]
        raise ConfigError(KEY, source, f"is not Python ({said})", "Correct it, or leave it out.") from None
    lines, known = text.splitlines(), dict[str, str]()
    for node in ast.walk(tree):
        for name, value, said_by in _said(node, known):
            line = getattr(node, "lineno", 1)
            says(run, name.replace("-", "_"), value, said_by, at(source, line, lines[line - 1]))


def _said(node: ast.AST, known: dict[str, str]) -> Iterator[tuple[str, object, SaidBy]]:
    if isinstance(node, ast.Assign | ast.AnnAssign):
        name = _dotted(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        if name and (value := _value(node.value, known)) is not None:
            known.setdefault(name, str(value))
            yield name.partition(".")[2] or name, value, SaidBy.FLAG  # of `recipe.trainer.devices` behind the variable
    elif isinstance(node, ast.Call):
        named = ((each.arg, _value(each.value, known)) for each in node.keywords)
        given = {name: value for name, value in named if name and value is not None}
        first = _value(node.args[0], known) if node.args else None
        *_, base, called = "", *_dotted(node.func).split(".")
        if called == "add_argument":
            default, given = given.get("default"), {}
            yield from ((str(first).lstrip("-"), value, SaidBy.PROSE) for value in (default,) if value is not None)
        elif called == "from_pretrained" and isinstance(first, str):
            yield "model_name_or_path", first, SaidBy.FLAG
        elif called.endswith("_recipe") and base:
            yield from ((name, base, SaidBy.FLAG) for name in ("recipe", "model_name"))
        yield from ((name, value, SaidBy.FLAG) for name, value in given.items())


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{base}.{node.attr}" if (base := _dotted(node.value)) else ""
    return node.id if isinstance(node, ast.Name) else ""


def _value(node: ast.AST | None, known: dict[str, str]) -> object:
    """The constant that an expression comes to, `torch.bfloat16` as its name; None of any other."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Attribute):
        return node.attr if _dotted(node).startswith("torch.") else None
    if isinstance(node, ast.Name):
        return known.get(node.id)
    return sum_of(ast.unparse(node), known) if isinstance(node, ast.BinOp) else None
