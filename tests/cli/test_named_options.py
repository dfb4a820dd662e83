"""Every option that a message names is one that a command has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import typer

from cli.main import app

ROOT = Path(__file__).parents[2]
ROOMS = ("cli/**/*.py", "results/analysis/*.py", "results/tables/*.py", "sweeps/planner/**/*.py")
OF_HYDRA = {"--multirun", "--config-name", "--config-path", "--package", "--resolve"}
OF_OTHER_PROGRAMS = {"--lr", "--batch", "--no-deps", "--logdir", "--ntasks-per-node", "--signal", *OF_HYDRA}
NAMED = re.compile(r"(?<![\w-])(--[a-z][a-z-]+)")


def options_of(command: object) -> Iterator[str]:
    yield "--help"
    for parameter in getattr(command, "params", ()):
        yield from parameter.opts
    for other in getattr(command, "commands", {}).values():
        yield from options_of(other)


def named_in(path: Path) -> Iterator[str]:
    """Options that texts of a module name, docstrings too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from NAMED.findall(node.value)


def test_options_that_messages_name_exist() -> None:
    known = {*options_of(typer.main.get_command(app))} | OF_OTHER_PROGRAMS
    paths = [path for room in ROOMS for path in ROOT.glob(room) if "--" in path.read_text()]
    named = {(path.name, option) for path in paths for option in named_in(path)}
    assert len(named) > 50
    assert [each for each in named if each[1] not in known] == []
