"""Sweeps that run by themselves while MLflow's page is open. The store is real."""

from __future__ import annotations

from pathlib import Path

import pytest

from results.mlflow.follow import import_of
from results.mlflow.store import connect
from sweeps.sweep import Sweep
from tests.results.conftest import SQLITE, WriteSweep, finish, performance, trial, write_steps

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
    bring_up_to_date = import_of(output_dir, SQLITE.model_dump(mode="json"))
    bring_up_to_date()
    assert runs_in(output_dir) == {"running base": "COMPLETED", "running other": "RUNNING"}
    finish(running.folder, OTHER, HOW["other"])
    bring_up_to_date()
    assert runs_in(output_dir) == {"running base": "COMPLETED", "running other": "COMPLETED"}


def test_a_sweep_that_goes_on_after_its_end_is_followed_again(running: Sweep, output_dir: Path) -> None:
    finish(running.folder, OTHER, HOW["other"])
    bring_up_to_date = import_of(output_dir, SQLITE.model_dump(mode="json"))
    bring_up_to_date()
    assert runs_in(output_dir) == {}
    running.folder.trial("other").measurement.unlink()
    bring_up_to_date()
    assert runs_in(output_dir) == {"running base": "COMPLETED", "running other": "RUNNING"}


def test_a_sweep_of_another_store_and_a_damaged_one_are_passed_over(running: Sweep, output_dir: Path) -> None:
    (output_dir / "damaged").mkdir()
    (output_dir / "damaged" / "sweep.json").write_text("{")
    another = SQLITE.model_copy(update={"experiment": "another"})
    import_of(output_dir, another.model_dump(mode="json"))()
    import_of(output_dir, SQLITE.model_dump(mode="json"))()
    assert runs_in(output_dir).keys() == {"running base", "running other"}
    assert connect(SQLITE, output_dir).get_experiment_by_name("another") is None
