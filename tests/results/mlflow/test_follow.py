"""MLflow while sweeps run: a real follower, a real store."""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from results.mlflow.follow import followed_in_mlflow, import_of
from results.mlflow.store import connect, database_path
from sweeps.sweep import Sweep
from tests.results.conftest import SQLITE, WriteSweep, finish, performance, trial, write_steps
from tests.results.mlflow.test_ui_in_a_browser import made_up_sweep
from tests.waiting import wait_for

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # MLflow's own

BASE, OTHER = trial("base", is_baseline=True), trial("other", world_size=2)
HOW = {"base": performance(100.0), "other": performance(190.0, 2)}


def runs_in(output_dir: Path) -> dict[str, str]:
    """What MLflow has of each sweep: the outcomes of its trials."""
    client = connect(SQLITE, output_dir)
    experiment = client.get_experiment_by_name(SQLITE.experiment)
    found = client.search_runs([experiment.experiment_id], "tags.kind = 'trial'") if experiment else []
    return {f"{run.data.tags['sweep']} {run.data.tags['trial_id']}": run.data.tags["outcome"] for run in found}


@pytest.fixture
def running(output_dir: Path, write_sweep: WriteSweep) -> Sweep:
    """Beside another sweep that has ended."""
    assert output_dir.exists()
    write_sweep((BASE, OTHER), HOW, name="ended")
    sweep = write_sweep((BASE, OTHER), {"base": performance(100.0)}, name="running")
    write_steps(sweep.folder, "other", [1, 2])
    return sweep


def test_those_that_run_are_followed_to_their_end_and_those_that_had_ended_are_left_alone(
    running: Sweep, output_dir: Path
) -> None:
    bring_up_to_date = import_of(output_dir, SQLITE)
    bring_up_to_date()
    assert runs_in(output_dir) == {"running base": "COMPLETED", "running other": "RUNNING"}
    finish(running.folder, OTHER, HOW["other"])
    bring_up_to_date()
    assert runs_in(output_dir) == {"running base": "COMPLETED", "running other": "COMPLETED"}


def test_a_sweep_that_goes_on_after_its_end_is_followed_again(running: Sweep, output_dir: Path) -> None:
    finish(running.folder, OTHER, HOW["other"])
    bring_up_to_date = import_of(output_dir, SQLITE)
    bring_up_to_date()
    assert runs_in(output_dir) == {}
    running.folder.trial("other").measurement.unlink()
    bring_up_to_date()
    assert runs_in(output_dir) == {"running base": "COMPLETED", "running other": "RUNNING"}


def test_a_sweep_of_another_store_and_a_damaged_one_are_passed_over(running: Sweep, output_dir: Path) -> None:
    (output_dir / "damaged").mkdir()
    (output_dir / "damaged" / "sweep.json").write_text("{")
    another = SQLITE.model_copy(update={"experiment": "another"})
    import_of(output_dir, another)()
    import_of(output_dir, SQLITE)()
    assert runs_in(output_dir).keys() == {"running base", "running other"}
    assert connect(SQLITE, output_dir).get_experiment_by_name("another") is None


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


@pytest.mark.slow
def test_steps_appear_while_the_sweep_runs(tmp_path: Path, empty_store: Path) -> None:
    folder = made_up_sweep(tmp_path).folder
    folder.trial("dead").measurement.unlink()
    write_steps(folder, "dead", [1, 2])
    database = Path(shutil.copy(empty_store, database_path(folder.path.parent)))
    with followed_in_mlflow(folder.path, SQLITE.model_copy(update={"live_seconds": 0.2})):
        wait_for(lambda: steps_in(database) == [1, 2], PATIENCE_SECONDS)
        write_steps(folder, "dead", [3, 4])
        wait_for(lambda: steps_in(database) == [1, 2, 3, 4], PATIENCE_SECONDS)
    write_steps(folder, "dead", [5])
    time.sleep(0.5)
    assert steps_in(database) == [1, 2, 3, 4], "nobody imports any more"


@pytest.mark.slow
def test_a_sweep_need_not_be_followed(tmp_path: Path) -> None:
    with followed_in_mlflow(tmp_path, SQLITE.model_copy(update={"live_seconds": None})):
        pass
    assert not database_path(tmp_path).exists()
