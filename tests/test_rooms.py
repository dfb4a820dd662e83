"""Every room can be read from its door: its `__init__` says what each module is for."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("conf", "train_core", "sweeps", "launcher", "results", "calibrate", "cli", "benchmarks")
LEAST_MODULES = 6
"""Fewer modules than these are seen at one glance."""


def modules_of(room: Path) -> list[str]:
    return sorted(path.stem for path in room.glob("*.py") if not path.stem.startswith("__"))


ROOMS = sorted(
    path.parent.relative_to(ROOT)
    for package in PACKAGES
    for path in (ROOT / package).rglob("__init__.py")
    if len(modules_of(path.parent)) >= LEAST_MODULES
)


@pytest.mark.parametrize("room", ROOMS, ids=str)
def test_a_room_of_many_modules_names_each_of_them(room: Path) -> None:
    said = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text())) or ""
    words = set(re.findall(r"\w+", said))
    assert [name for name in modules_of(ROOT / room) if name not in words] == []
