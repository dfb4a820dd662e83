"""The constants on the page of assumptions are those that predictions use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import pytest

from benchmarks.cost_model_tables import PAGE, TABLES, with_tables
from conf.folders import options
from costs import IMPLEMENTATIONS
from tests.composed import load_cluster


@pytest.fixture(scope="module", autouse=True)
def tables_made_once() -> Iterator[None]:
    """Each table of today, for all tests, as making one takes seconds and depends on nothing that a test changes."""
    with pytest.MonkeyPatch.context() as patch:
        for name, make in list(TABLES.items()):
            patch.setitem(TABLES, name, cache(lambda make=make: tuple(make())))
        yield


@pytest.mark.slow
def test_the_tables_in_the_tree_are_what_the_files_say_today() -> None:
    text = PAGE.read_text()
    assert text == with_tables(text), "run `python -m benchmarks.cost_model_tables` and commit docs/cost-model.md"


def test_every_table_has_its_place_on_the_page() -> None:
    assert set(re.findall(r"<!-- (\w+): written by", PAGE.read_text())) == set(TABLES)


@pytest.mark.slow
def test_a_changed_constant_changes_the_page() -> None:
    """Written over what stood between the comments, and nothing else."""
    text = PAGE.read_text()
    selene = next(line for line in text.splitlines() if line.startswith("| ") and "`selene`" in line)
    assert str(load_cluster("selene").efficiency.matmul) in selene
    assert with_tables(text.replace(selene, "| `selene` | 1 |")) == text


def test_every_cluster_and_trainer_is_there() -> None:
    text = PAGE.read_text()
    for name in {*options("cluster")} - {"local"}:
        assert f"`{name}`" in text
    for trainer in IMPLEMENTATIONS:
        assert f"`{trainer}`" in text
