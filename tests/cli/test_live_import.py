"""MLflow while a sweep runs: a real follower, a real store."""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from cli.live_import import followed_in_mlflow
from results.mlflow.store import database_path
from tests.results.conftest import SQLITE, trial, write_steps
from tests.results.mlflow.test_ui_in_a_browser import made_up_sweep

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # MLflow's own

PATIENCE_SECONDS = 90.0
QUERY = "SELECT step FROM metrics JOIN runs USING (run_uuid) WHERE runs.name = ? AND key = 'step/loss' ORDER BY step"
RUNNING = trial("dead", world_size=2, pipeline_parallel_size=2)


def steps_in(database: Path) -> list[int]:
    assert RUNNING.experiment is not None
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as store:
            return [step for (step,) in store.execute(QUERY, (RUNNING.experiment.label,))]
    except sqlite3.Error:  # not made yet
        return []


def wait_for_steps(database: Path, wanted: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while steps_in(database) != wanted:
        assert time.monotonic() < deadline, steps_in(database)
        time.sleep(0.1)


@pytest.mark.slow
def test_steps_appear_while_the_sweep_runs(tmp_path: Path, empty_store: Path) -> None:
    folder = made_up_sweep(tmp_path).folder
    folder.trial("dead").measurement.unlink()
    write_steps(folder, "dead", [1, 2])
    database = Path(shutil.copy(empty_store, database_path(folder.path.parent)))
    with followed_in_mlflow(folder.path, SQLITE.model_copy(update={"live_seconds": 0.2})):
        wait_for_steps(database, [1, 2])
        write_steps(folder, "dead", [3, 4])
        wait_for_steps(database, [1, 2, 3, 4])
    write_steps(folder, "dead", [5])
    time.sleep(0.5)
    assert steps_in(database) == [1, 2, 3, 4], "nobody imports any more"


@pytest.mark.slow
def test_a_sweep_need_not_be_followed(tmp_path: Path) -> None:
    with followed_in_mlflow(tmp_path, SQLITE.model_copy(update={"live_seconds": None})):
        pass
    assert not database_path(tmp_path).exists()
