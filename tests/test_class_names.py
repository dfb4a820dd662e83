"""A class name means one thing in product and benchmarks, so that a reader who meets it knows which class it is."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("conf", "train_core", "sweeps", "launcher", "results", "calibrate", "cli", "benchmarks")


@pytest.mark.slow
def test_class_names_are_unique() -> None:
    places = defaultdict[str, list[str]](list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(str(path.relative_to(ROOT)))
    assert len(places) > 400, "the product has hundreds of classes"
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
