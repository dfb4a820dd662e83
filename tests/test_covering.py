"""What `make test` leaves out of large grids."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import options_of
from tests.covering import covering

Case = dict[str, int]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_every_pair_of_values_that_meets_in_a_case_meets_in_one_that_is_kept(sizes: list[int]) -> None:
    grid = [dict(zip("abcd", values, strict=False)) for values in product(*(range(size) for size in sizes))]
    kept = covering(grid, lambda case: case)
    assert all(_together(case) <= set().union(*map(_together, kept)) for case in grid)


def test_few_cases_of_a_large_grid_are_kept_in_their_order() -> None:
    grid = [dict(zip("abcd", values, strict=True)) for values in product(range(4), repeat=4)]
    kept = covering(grid, lambda case: case)
    assert 16 <= len(kept) <= 32 < len(grid)
    assert kept == [case for case in grid if case in kept]


def test_a_grid_of_one_option_is_kept_whole() -> None:
    grid = [{"a": value} for value in range(3)]
    assert covering(grid, lambda case: case) == grid


@pytest.mark.one_in(2)
@pytest.mark.parametrize("number", range(4))
def test_of_a_function_that_says_so_every_second_case_is_run(number: int, pytestconfig: pytest.Config) -> None:
    assert number % 2 == 0 or pytestconfig.getoption("all_cases")


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("word", ["few", "many"])
def test_the_options_of_a_case_are_the_values_that_it_was_given(
    request: pytest.FixtureRequest, number: int, word: str
) -> None:
    """Cases that share a value share an option, or no grid would lose a case."""
    assert options_of(request.node) == {"number": repr(number), "word": repr(word)}


def _together(case: Case) -> set[tuple[tuple[str, int], ...]]:
    items = sorted(case.items())
    return {(item,) for item in items} | set(combinations(items, 2))
