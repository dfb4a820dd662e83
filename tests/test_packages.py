"""What a package offers: its docstring says what it and its modules are for, a class name means one thing in all of
them, and nobody reaches behind a leading underscore."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "trisweep",
    "conf",
    "costs",
    "train_core",
    "rates",
    "sweeps",
    "launcher",
    "results",
    "calibrate",
    "diagnose",
    "cli",
    "benchmarks",
)
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
INITS = sorted(path for path in FILES if path.name == "__init__.py")
LEAST_WORDS = 5


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def modules_of(room: Path) -> list[str]:
    """Modules and rooms directly in it."""
    modules = [path.stem for path in room.glob("*.py") if not path.stem.startswith("__")]
    return sorted([*modules, *(path.parent.name for path in room.glob("*/__init__.py"))])


@pytest.mark.parametrize("path", INITS, ids=relative)
def test_a_package_says_what_it_is_for(path: Path) -> None:
    first = (ast.get_docstring(parsed(path)) or "").split("\n\n")[0]
    assert len(first.split()) >= LEAST_WORDS
    assert first.rstrip().endswith((".", ":"))


@pytest.mark.parametrize("path", INITS, ids=relative)
def test_a_room_names_each_of_its_modules(path: Path) -> None:
    words = set(re.findall(r"\w+", ast.get_docstring(parsed(path)) or ""))
    assert [name for name in modules_of(path.parent) if name not in words] == []


def test_every_folder_of_modules_is_a_package() -> None:
    assert {path.parent for path in FILES} == {path.parent for path in INITS}


@pytest.mark.slow
def test_class_names_are_unique() -> None:
    """In product and benchmarks, so that a reader who meets one knows which class it is."""
    places = defaultdict[str, list[str]](list)
    for path in FILES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(relative(path))
    assert len(places) > 400, "the product has hundreds of classes"
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


@pytest.mark.slow
def test_a_docstring_begins_with_a_sentence_and_not_with_a_list() -> None:
    documented = (ast.ClassDef, ast.FunctionDef)
    nodes = [(path, node) for path in FILES for node in ast.walk(parsed(path)) if isinstance(node, documented)]
    first_lines = {(relative(path), node.name): (ast.get_docstring(node) or "").split("\n")[0] for path, node in nodes}
    lists = {"Attributes:", "Args:", "Raises:", "Returns:"}
    assert [place for place, line in first_lines.items() if line in lists] == []


@pytest.mark.slow
def test_no_module_imports_what_another_keeps_to_itself() -> None:
    """A name or module with a leading underscore belongs to its own module alone."""
    assert [f"{relative(path)}: {name}" for path in FILES for name in _private_imports(path)] == []


def _private_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
            for name in (*node.module.split("."), *(alias.name for alias in node.names)):
                if name.startswith("_") and not name.startswith("__"):
                    yield f"{node.module}.{name}"
