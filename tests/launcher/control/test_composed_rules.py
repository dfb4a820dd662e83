"""What a configuration's rules ask of whoever carries a sweep out."""

from __future__ import annotations

import pytest

from launcher.control.composed_rules import goes_on_by_steps
from tests.composed import load
from tests.conftest import RecordOf


@pytest.mark.parametrize(
    ("overrides", "stays"),
    [
        ([], False),
        (["search.max_rounds=2"], True),
        (["search.max_rounds=2", "search.objective=loss"], False),
        (["search.max_concurrent_trials=4"], True),
    ],
    ids=["all at once", "leaders are repeated", "losses are not repeated", "few at once"],
)
def test_somebody_stays_with_a_sweep_only_if_not_all_can_be_submitted_at_once(
    record_of: RecordOf, overrides: list[str], stays: bool
) -> None:
    settings = load(["sweep=smoke", "cluster=frontier", "precision=bf16", *overrides])
    assert goes_on_by_steps(settings, record_of([{"training.seed": 1}])) == stays
