"""`trisweep train`: one experiment, or the long training of a sweep's best plan."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Command


@pytest.mark.slow
def test_the_best_plan_trains_on_and_its_losses_are_in_mlflow(finished: Path, trisweep: Command) -> None:
    done = trisweep("train", "--from-best", "smoke", "--here", "training.num_steps=12", cwd=finished)
    assert done.returncode == 0, done.stderr
    assert "Best plan: tp" in done.stdout
    assert "step 12 of 12, loss " in done.stdout
    assert "MLflow: training smoke-local is up to date" in done.stdout
    query = (
        "SELECT metrics.step FROM metrics JOIN runs USING (run_uuid)"
        " WHERE runs.name = 'training smoke-local' AND metrics.key = 'step/loss' ORDER BY metrics.step"
    )
    with closing(sqlite3.connect(finished / "runs" / "mlflow.db")) as store:
        assert [step for (step,) in store.execute(query)] == list(range(1, 13))
