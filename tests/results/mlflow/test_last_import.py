"""What is remembered of an import: when it spares reading a sweep, and when it must not. The stores are real."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import sweeps.sweep
from conf.types.sites import TrackingSpec
from results.mlflow.store import connect, database_path
from results.mlflow.sweep_import import ImportSummary, import_sweep
from results.mlflow.writer import RunWriter
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from tests.results.conftest import SQLITE, WriteSweep, finish, performance, trial, write_steps

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # MLflow's own

STRONG = trial("strong", world_size=2, tensor_parallel_size=2)
TRIALS = (trial("base", is_baseline=True), STRONG, trial("impossible", world_size=3, tensor_parallel_size=2))
HOW = {"base": performance(100.0), "strong": performance(160.0, 2)}


class Imports:
    """Imports one sweep, and counts how often it is read."""

    def __init__(self, sweep: Sweep, output_dir: Path) -> None:
        self.sweep, self.output_dir, self.num_readings = sweep, output_dir, 0

    def read(self, sweep: Sweep) -> Sequence[TrialReading]:
        self.num_readings += 1
        return sweep.read()

    def __call__(self, tracking: TrackingSpec = SQLITE) -> ImportSummary:
        return import_sweep(self.sweep, tracking, self.output_dir, self.read)


@pytest.fixture
def imports(write_sweep: WriteSweep, output_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Imports:
    """A sweep that was imported, long after its last change."""
    monkeypatch.setattr(sweeps.sweep, "TICK_NS", 0)
    imports = Imports(write_sweep(TRIALS, HOW), output_dir)
    assert imports().created == 4
    return imports


@pytest.mark.slow
def test_a_sweep_in_which_nothing_has_changed_is_not_read_again(imports: Imports) -> None:
    first, again = imports(), imports()
    assert imports.num_readings == 1
    assert (first, again.unchanged) == (again, 4)
    assert again.run_id in {run.info.run_id for run in connect(SQLITE, imports.output_dir).search_runs(["1"])}


@pytest.mark.slow
def test_a_trial_that_has_changed_is_written_and_then_remembered(imports: Imports) -> None:
    finish(imports.sweep.folder, STRONG, performance(170.0, 2))
    done = [imports(), imports()]
    assert [each.updated + each.created for each in done] == [2, 0], "the trial and the parent"
    assert imports.num_readings == 2


@pytest.mark.slow
def test_for_a_trial_that_has_changed_mlflow_is_not_asked_for_all_runs(
    imports: Imports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunWriter, "_find", None)
    finish(imports.sweep.folder, STRONG, performance(170.0, 2))
    assert imports().updated + imports().created == 2
    connect(SQLITE, imports.output_dir).create_run("1", run_name="somebody else's")
    finish(imports.sweep.folder, STRONG, performance(180.0, 2))
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        imports()


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["", "{", "[]", '{"files": []}', "\udcff"])
def test_a_damaged_memory_is_as_good_as_none(imports: Imports, damage: str) -> None:
    imports.sweep.folder.imported.write_bytes(damage.encode(errors="surrogateescape"))
    assert (imports().unchanged, imports.num_readings) == (4, 2)
    assert json.loads(imports.sweep.folder.imported.read_text()).keys() == {"files", "store", "runs"}


@pytest.mark.slow
def test_another_store_gets_everything(imports: Imports, empty_store: Path) -> None:
    imports.output_dir /= "elsewhere"
    imports.output_dir.mkdir()
    shutil.copy(empty_store, database_path(imports.output_dir))
    assert imports().created == 4
    assert imports(SQLITE.model_copy(update={"experiment": "another"})).created == 4


@pytest.mark.slow
def test_a_run_that_somebody_deleted_comes_back(imports: Imports) -> None:
    client = connect(SQLITE, imports.output_dir)
    child = next(run for run in client.search_runs(["1"]) if run.data.tags.get("trial_id") == "strong")
    client.delete_run(child.info.run_id)
    assert (imports().created, imports().unchanged) == (1, 4)


@pytest.mark.slow
def test_a_new_report_is_imported(imports: Imports) -> None:
    imports.sweep.folder.report("html").write_text("<h1>made up</h1>")
    assert (imports().updated, imports().unchanged) == (1, 4)


@pytest.mark.slow
def test_while_a_trial_waits_for_its_job_every_import_reads(write_sweep: WriteSweep, imports: Imports) -> None:
    imports.sweep = write_sweep(TRIALS, {"base": performance(100.0)}, name="unfinished")
    write_steps(imports.sweep.folder, "strong", [1])
    imports.num_readings = 0
    assert (imports().created, imports().unchanged, imports.num_readings) == (4, 4, 2)


@pytest.mark.slow
def test_a_file_that_may_change_within_the_same_tick_of_the_clock_is_not_remembered(
    imports: Imports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps.sweep, "TICK_NS", 3600 * 10**9)
    finish(imports.sweep.folder, STRONG, performance(170.0, 2))
    assert [imports().unchanged for _ in range(3)] == [2, 4, 4]
    assert imports.num_readings == 4
