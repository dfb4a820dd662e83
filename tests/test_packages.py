"""What a package offers: its docstring says what it is for, and nobody reaches behind a leading underscore."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("conf", "train_core", "sweeps", "launcher", "results", "calibrate", "cli", "benchmarks")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
INITS = sorted(path for path in FILES if path.name == "__init__.py")
LEAST_WORDS = 5


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", INITS, ids=relative)
def test_a_package_says_what_it_is_for(path: Path) -> None:
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    first = said.split("\n\n")[0]
    assert len(first.split()) >= LEAST_WORDS
    assert first.rstrip().endswith((".", ":"))


def test_every_folder_of_modules_is_a_package() -> None:
    assert {path.parent for path in FILES} == {path.parent for path in INITS}


@pytest.mark.slow
def test_no_module_imports_what_another_keeps_to_itself() -> None:
    """A name or module with a leading underscore belongs to its own module alone."""
    assert [f"{relative(path)}: {name}" for path in FILES for name in _private_imports(path)] == []


def _private_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
            for name in (*node.module.split("."), *(alias.name for alias in node.names)):
                if name.startswith("_") and not name.startswith("__"):
                    yield f"{node.module}.{name}"
