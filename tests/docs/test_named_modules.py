"""What docstrings and pages say of modules is true: those that they name exist, and packages import what they may."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("conf", "costs", "train_core", "rates", "sweeps", "launcher", "results", "calibrate", "diagnose", "cli")
NAMED = re.compile(rf"`((?:{'|'.join(PACKAGES)})(?:\.(?!json\b)[a-z_0-9]+)+)(?:\.[A-Z]\w*(?:\.\w+)?)?(?:\(.*?\))?`")
BELOW = {
    "costs": ("conf",),
    "train_core": ("conf", "costs"),
    "rates": ("conf", "costs", "train_core"),
    "sweeps": ("conf", "costs", "train_core", "rates"),
    "launcher": ("conf", "costs", "train_core", "rates", "sweeps"),
    "results": ("conf", "costs", "train_core", "rates", "sweeps"),
    "calibrate": ("conf", "costs", "train_core", "rates", "sweeps", "launcher", "results"),
    "diagnose": ("conf", "costs", "train_core", "rates", "sweeps", "launcher", "results", "calibrate"),
    "cli": ("conf", "costs", "train_core", "rates", "sweeps", "launcher", "results", "calibrate"),
}


def sources(package: str) -> Iterator[Path]:
    return iter(sorted((ROOT / package).rglob("*.py")))


def docstrings(path: Path) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]
    return (text for node in nodes if (text := ast.get_docstring(node)))


def exists(dotted: str) -> bool:
    """Whether it is a module, or something that the module before the last dot defines."""
    try:
        if importlib.util.find_spec(dotted):
            return True
    except ModuleNotFoundError:
        pass
    *parents, name = dotted.split(".")
    path = ROOT.joinpath(*parents)
    module = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    return module.exists() and re.search(rf"\b{name}\b", module.read_text()) is not None


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_that_docstrings_name_exist(package: str) -> None:
    named = {(path, name) for path in sources(package) for text in docstrings(path) for name in NAMED.findall(text)}
    assert [f"{path.relative_to(ROOT)}: {name}" for path, name in sorted(named) if not exists(name)] == []


def stated() -> dict[str, set[str]]:
    """What the table of architecture.md lets each package import, beside what is below."""
    rows = re.findall(
        r"^\| `([a-z_.]+)` \|.*\|([^|]*)\|$", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE
    )
    return {package: set(re.findall(r"\w+", cell)) for package, cell in rows}


def imported(package: str) -> set[str]:
    """Packages of others that it imports, by the name that the import gives them."""
    found: set[str] = set()
    for path in sources(package):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    return found - sys.stdlib_module_names - set(PACKAGES) - {"pydantic_core"}


@pytest.mark.parametrize("package", ["conf", *BELOW])
def test_a_package_imports_what_the_table_of_the_architecture_lets_it(package: str) -> None:
    table = stated()
    allowed = table[package].union(*(table[each] for each in BELOW.get(package, ())))
    assert sorted(imported(package) - allowed) == []
