"""The benchmark of large sweeps, on a sweep of four trials."""

from __future__ import annotations

import pytest

from benchmarks import large_sweep


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # MLflow's own
def test_it_imports_changes_and_reports_a_sweep() -> None:
    assert len(large_sweep.main(num_trials=4)) == 4
