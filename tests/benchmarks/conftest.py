"""What tests of the benchmarks share: the published rows, which take seconds to price."""

from __future__ import annotations

import pytest

from benchmarks.forward import forward_results
from benchmarks.levels import LevelResult
from benchmarks.published_rows import published_rows
from sweeps.table.prices import PricedRow


@pytest.fixture(scope="session")
def priced() -> dict[str, PricedRow]:
    """Every published row that somebody confirmed, priced once. Nobody changes it."""
    return published_rows()


@pytest.fixture(scope="session")
def forward() -> list[LevelResult]:
    """What the forward test says today, of rows that are priced for it once."""
    return forward_results()
