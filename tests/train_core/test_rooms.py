"""Each package of the trainer says what it is for, and what is where in it."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import train_core

ROOT = Path(train_core.__file__).parent
ROOMS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))


def modules_of(folder: Path) -> set[str]:
    """Modules and packages directly in a folder, without those that only start a program."""
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    return files | {path.parent.name for path in folder.glob("*/__init__.py")}


def named_in(package: str) -> set[str]:
    """Every word of the package's docstring."""
    return set(re.findall(r"\w+", import_module(package).__doc__ or ""))


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "costs"])
def test_a_room_says_what_each_of_its_modules_is_for(room: str) -> None:
    assert not modules_of(ROOT / room) - named_in(f"train_core.{room}")


def test_the_floors_of_the_house_are_named_from_top_to_bottom() -> None:
    assert not modules_of(ROOT) - named_in("train_core")


def test_costs_names_what_others_may_use() -> None:
    costs = import_module("train_core.costs")
    assert all(hasattr(costs, name) for name in costs.__all__)
