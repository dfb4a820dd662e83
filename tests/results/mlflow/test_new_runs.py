"""Runs that are put into the tables of a database by the hundred."""

from __future__ import annotations

import math
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from conf.errors import UsageError
from results.mlflow import new_runs, writer
from results.mlflow.store import database_path
from results.mlflow.sweep_import import import_sweep
from sweeps.sweep import Sweep
from tests.results.conftest import SQLITE, WriteSweep, finish, performance, step, trial, write_steps
from train_core.trial.measurement import Outcome

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # MLflow's own

TRIALS = (
    trial("base", is_baseline=True),
    trial("two", world_size=2, tensor_parallel_size=2),
    trial("odd", world_size=2),
    trial("waiting", world_size=2, pipeline_parallel_size=2),
    trial("impossible", world_size=3, tensor_parallel_size=2),
)
TABLES = ("runs", "tags", "params", "metrics", "latest_metrics", "experiments", "experiment_tags")


def written(write_sweep: WriteSweep) -> Sweep:
    """A sweep with every end, and with losses of every kind of number."""
    folder, record, _ = write_sweep(TRIALS, {"base": performance(100.0)})
    write_steps(folder, "two", range(1, 4))
    for number, loss in enumerate((4.0, math.nan, math.inf, 4.0), start=1):
        folder.trial("odd").append_metrics(step(number).model_copy(update={"loss": loss}))
    finish(folder, TRIALS[2], (Outcome.FAILED, "the loss is not a number"))
    return Sweep(folder, record)


def everything_in(store: Path) -> dict[str, list[str]]:
    """All rows of the tables, in which a run is called by its key, as ids are random."""
    with closing(sqlite3.connect(database_path(store))) as tables:
        names = tables.execute("SELECT run_uuid, value FROM tags WHERE key = 'trisweep.key'").fetchall()
        found = {}
        for table in TABLES:
            rows = "\n".join(map(repr, tables.execute(f"SELECT * FROM {table}")))
            for run_id, name in [*names, (str(store), "STORE")]:
                rows = rows.replace(run_id, name)
            found[table] = sorted(rows.splitlines())
        return found


def test_the_tables_hold_what_mlflows_own_client_writes(
    write_sweep: WriteSweep, output_dir: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, other = written(write_sweep), output_dir.parent / "others"
    other.mkdir()
    shutil.copy(empty_store, database_path(other))
    assert import_sweep(sweep, SQLITE, output_dir).created == 6
    monkeypatch.setattr(writer, "engine_of", lambda client: None)
    assert import_sweep(sweep, SQLITE, other).created == 6
    ours, theirs = everything_in(output_dir), everything_in(other)
    for table in ("experiments",):  # which have the time of their making
        assert len(ours.pop(table)) == len(theirs.pop(table))
    assert len(ours["metrics"]) > 100
    assert ours == theirs
    artifacts = [sorted(path.name for path in (store / "mlartifacts").rglob("*.*")) for store in (output_dir, other)]
    assert artifacts[0] == artifacts[1]


@pytest.mark.parametrize("place", [0, 1], ids=["release", "revision"])
def test_with_an_untried_release_or_schema_the_client_writes_the_runs(
    place: int,
    write_sweep: WriteSweep,
    output_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(
        new_runs, "TRIED", tuple("0" if at == place else each for at, each in enumerate(new_runs.TRIED))
    )
    monkeypatch.setattr(writer, "insert_runs", lambda *_: pytest.fail("rows were written into unknown tables"))
    new_runs._say_untried.cache_clear()
    sweep = written(write_sweep)
    assert import_sweep(sweep, SQLITE, output_dir).created == 6
    assert import_sweep(sweep, SQLITE, output_dir).unchanged == 6
    assert len(everything_in(output_dir)["runs"]) == 6
    (said,) = [each.getMessage() for each in caplog.records if each.name == new_runs.__name__]
    assert said.endswith("has not been tried: its own client writes each new run by itself, which takes longer.")


def test_a_name_that_mlflow_refuses_is_one_message_and_leaves_no_run(write_sweep: WriteSweep, output_dir: Path) -> None:
    strange = TRIALS[0].model_copy(update={"point": {"trainer.flags.a?b": 1}})
    folder, record, _ = write_sweep((strange,), {})
    with pytest.raises(UsageError, match=r"MLflow refused the import \(.*a\?b"):
        import_sweep(Sweep(folder, record), SQLITE, output_dir)
    assert everything_in(output_dir)["runs"] == []
