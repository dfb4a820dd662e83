"""Stores that are made anew, of other programs and versions, and what a sweep no longer has. All of them are real."""

from __future__ import annotations

import math
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from conf.errors import UsageError
from conf.types.sites import TrackingSpec
from results.mlflow.reachable import remedy_of
from results.mlflow.run_content import ORDER, LoggedMetric
from results.mlflow.store import artifact_dir, connect, database_path, tracking_uri
from results.mlflow.sweep_import import import_sweep, move_store_aside
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import BuildRecord
from tests.messages import refused
from tests.permissions import bound_by_permissions
from tests.results.conftest import SQLITE, WriteSweep, finish, performance, step, sweep_writer, trial
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Outcome

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # MLflow's own

STRONG = trial("strong", world_size=2, tensor_parallel_size=2)
WEAK = trial("weak", world_size=2, global_batch_size=16)
IMPOSSIBLE = trial("impossible", world_size=3, tensor_parallel_size=2)
TRIALS = (trial("base", is_baseline=True), STRONG, WEAK, IMPOSSIBLE)
HOW = {"base": performance(100.0), "strong": performance(160.0, 2), "weak": performance(190.0, 2)}
FILLERS = "SELECT count(*) FROM sqlite_master WHERE name = 'filler'"
METRICS = "SELECT run_uuid, key, value, timestamp, step FROM metrics"


def runs_in(output_dir: Path, tracking: TrackingSpec = SQLITE) -> dict[str, Any]:
    """Active runs of ours by trial id; the parent is `sweep`."""
    client = connect(tracking, output_dir)
    experiment: Any = client.get_experiment_by_name(tracking.experiment)
    found = client.search_runs([experiment.experiment_id], max_results=1000)
    return {run.data.tags.get("trial_id", "sweep"): run for run in found if "trisweep.key" in run.data.tags}


def contents_of(output_dir: Path, tracking: TrackingSpec = SQLITE, database: str = "") -> dict[str, Any]:
    """Everything that the store says of a sweep but for the ids of runs, which are random.

    Args:
        database: what holds the tables of the store, where it is not the store itself.
    """
    client, runs = connect(tracking, output_dir), runs_in(output_dir, tracking)
    names = {run.info.run_id: name for name, run in runs.items()}
    logged = metrics_in(database or tracking_uri(tracking, output_dir))
    told = {}
    for name, run in runs.items():
        tags = {key: names.get(value, value) for key, value in run.data.tags.items()}
        files = sorted((each.path, each.file_size) for each in client.list_artifacts(run.info.run_id))
        times = (run.info.status, run.info.start_time, run.info.end_time)
        told[name] = (run.info.run_name, times, tags, run.data.params, logged.get(run.info.run_id, []), files)
    return told


def metrics_in(database: str) -> dict[str, list[tuple[object, ...]]]:
    """Every value of every metric, by the id of its run; a request for each key would take a hundred times as long."""
    import sqlalchemy  # here, as every worker collects this file, and one runs its tests

    found: dict[str, list[tuple[object, ...]]] = {}
    engine = sqlalchemy.create_engine(database)
    with engine.connect() as tables:
        for run_id, *row in tables.execute(sqlalchemy.text(METRICS)):
            found.setdefault(run_id, []).append(tuple(row))
    engine.dispose()
    return {run_id: sorted(rows) for run_id, rows in found.items()}


def die_while_writing(store: Path) -> None:
    """Leave what a writer leaves that is killed in the middle of a transaction, in a store that holds something."""
    journal = store.with_name(f"{store.name}-journal")
    with closing(sqlite3.connect(store, isolation_level=None)) as writer:
        writer.execute("PRAGMA cache_size = 1")
        writer.execute("CREATE TABLE filler AS SELECT randomblob(200000) AS bytes")
        writer.execute("BEGIN")
        writer.execute("CREATE TABLE more (number)")
        writer.execute("UPDATE filler SET bytes = randomblob(200000)")
        left = {path: path.read_bytes() for path in (store, journal)}
        writer.execute("ROLLBACK")
    for path, content in left.items():
        path.write_bytes(content)


def test_what_a_dead_writer_left_goes_aside_with_its_store_and_not_into_the_next_one(
    output_dir: Path, empty_store: Path
) -> None:
    store = database_path(output_dir)
    die_while_writing(store)
    (kept,) = move_store_aside(output_dir)
    shutil.copy(empty_store, store)
    for path, num_fillers in ((store, 0), (kept, 1)):
        with closing(sqlite3.connect(path)) as opened:
            assert opened.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert opened.execute(FILLERS).fetchone() == (num_fillers,)


def test_a_store_whose_making_was_cut_short_is_made_by_the_next_import(
    write_sweep: WriteSweep, output_dir: Path
) -> None:
    """As by a follower whose sweep has ended, in the middle of one of the steps in which MLflow makes its tables.

    The store that was there before died while it was written, and somebody has deleted it. One before that has been put
    aside, and others might write it.
    """
    (output_dir / "mlflow.db.old-1").touch()
    (output_dir / "mlartifacts.old-1").mkdir()
    for name, mode in (("mlflow.db.old-1", 0o660), ("mlartifacts.old-1", 0o770)):
        (output_dir / name).chmod(mode)

    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def cut_short(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if "CREATE TABLE _alembic_tmp_tags" in statement:
            raise KeyboardInterrupt

    die_while_writing(database_path(output_dir))
    database_path(output_dir).unlink()
    event.listen(Engine, "after_cursor_execute", cut_short)
    try:
        with pytest.raises(KeyboardInterrupt):
            connect(SQLITE, output_dir)
    finally:
        event.remove(Engine, "after_cursor_execute", cut_short)
    assert import_sweep(write_sweep(TRIALS, HOW), SQLITE, output_dir).created == 1 + len(TRIALS)
    with closing(sqlite3.connect(database_path(output_dir))) as made:
        assert made.execute(FILLERS).fetchone() == (0,)
    made_anew = (database_path(output_dir), artifact_dir(output_dir))
    assert [path.stat().st_mode & 0o777 for path in made_anew] == [0o660, 0o770]


def test_a_store_that_was_moved_is_made_anew_by_the_command_that_is_named_and_the_old_folder_stays_away(
    write_sweep: WriteSweep, output_dir: Path, empty_store: Path
) -> None:
    import_sweep(write_sweep(TRIALS, HOW), SQLITE, output_dir)
    moved = output_dir.rename(output_dir.with_name("elsewhere"))
    sweep = Sweep.stored_in(SweepFolder(moved / "made-up"))
    for anew in (False, True):
        with pytest.raises(UsageError, match=rf"made elsewhere.*`trisweep reindex output_dir={moved}`"):
            import_sweep(sweep, SQLITE, moved, anew=anew)
    assert not output_dir.exists()
    move_store_aside(moved)
    again = moved.rename(moved.with_name("again"))  # this process keeps the store open that it knows by that name
    shutil.copy(empty_store, database_path(again))
    done = import_sweep(Sweep.stored_in(SweepFolder(again / "made-up")), SQLITE, again, anew=True)
    assert done.created == 1 + len(TRIALS)
    runs, client = runs_in(again), connect(SQLITE, again)
    for name in ("base", "strong"):
        assert runs[name].info.artifact_uri.startswith(artifact_dir(again).as_uri())
        assert "measurement.json" in [each.path for each in client.list_artifacts(runs[name].info.run_id)]


def test_every_trial_has_its_efficiency_with_its_kind_what_is_held_constant_and_the_baseline(
    write_sweep: WriteSweep, output_dir: Path
) -> None:
    import_sweep(write_sweep(TRIALS, HOW), SQLITE, output_dir)
    runs = runs_in(output_dir)
    assert runs["strong"].data.metrics["scale/strong_pct"] == pytest.approx(80)
    assert runs["weak"].data.metrics["scale/weak_pct"] == pytest.approx(95)
    assert runs["weak"].data.metrics["scale/speedup"] == pytest.approx(1.9)
    assert runs["weak"].data.tags["scaling"] == "weak"
    assert runs["weak"].data.tags["held_constant"] == "batch of 8 per device held constant, 1 device to 2"
    assert runs["base"].data.metrics["scale/weak_pct"] == runs["base"].data.metrics["scale/strong_pct"] == 100
    assert {run.data.tags["baseline"] for run in runs.values()} == {"tp1-pp1-dp1-mb1-gb8"}
    assert runs["impossible"].data.tags["scaling"] == "not comparable"


def test_the_parent_has_the_best_figures_the_legend_and_the_report(write_sweep: WriteSweep, output_dir: Path) -> None:
    sweep = write_sweep(TRIALS, HOW)
    sweep.folder.report("html").write_text("<h1>A made-up report</h1>")
    import_sweep(sweep, SQLITE, output_dir)
    parent = runs_in(output_dir)["sweep"]
    best = {key: value for key, value in parent.data.metrics.items() if key.startswith("best/")}
    assert best["best/TFLOPS"] == pytest.approx(0.1)
    assert (best["best/weak_pct"], best["best/strong_pct"]) == (pytest.approx(95), pytest.approx(80))
    assert (parent.data.metrics["trials/measured"], parent.data.metrics["trials/infeasible"]) == (3, 1)
    note = parent.data.tags["mlflow.note.content"]
    assert "No clear winner: tp1-pp1-dp1-mb1-gb8 had the highest rate per device" in note
    assert "Fastest per device:" not in note, "the report does not call it that where another may be as fast"
    assert "tensor-parallel" in note
    names = {item.path for item in connect(SQLITE, output_dir).list_artifacts(parent.info.run_id)}
    assert names == {"report.html", "sweep.json"}
    sweep.folder.report("html").write_text("<h1>Another report</h1>")
    assert import_sweep(sweep, SQLITE, output_dir).updated == 1, "the report is part of what the parent holds"


def test_a_trial_that_was_ended_early_is_counted_apart_from_those_that_failed(
    write_sweep: WriteSweep, output_dir: Path
) -> None:
    how = HOW | {"weak": (Outcome.PRUNED, "clearly slower"), "strong": (Outcome.FAILED, "ValueError")}
    import_sweep(write_sweep(TRIALS, how), SQLITE, output_dir)
    metrics = runs_in(output_dir)["sweep"].data.metrics
    assert (metrics["trials/measured"], metrics["trials/pruned"], metrics["trials/failed"]) == (1, 1, 1)


@pytest.mark.parametrize(
    ("objective", "order", "first"),
    [("throughput", "metrics.`meas/TFLOPS` DESC", 0), ("loss", "metrics.`objective/loss` ASC", 1)],
)
def test_the_parent_says_in_which_order_its_trials_stand(
    objective: str, order: str, first: int, build_record: BuildRecord, output_dir: Path
) -> None:
    record = build_record([{"training.learning_rate": rate} for rate in (1e-3, 1e-2)], [])
    record = record.model_copy(update={"objective": (objective,), "tracking": SQLITE})
    folder = SweepFolder(output_dir / "lr-local")
    folder.write_record(record)
    for trial_, rate, loss in zip(record.trials, (120.0, 100.0), (5.0, 4.0), strict=True):
        finish(folder, trial_, performance(rate, losses=(loss,), final_loss=loss))
    done = import_sweep(Sweep.stored_in(folder), SQLITE, output_dir)
    client = connect(SQLITE, output_dir)
    assert client.get_run(done.run_id).data.tags[ORDER] == order
    best = client.search_runs([done.experiment_id], "tags.kind = 'trial'", order_by=[order])[0]
    assert best.data.tags["trial_id"] == record.trials[first].trial_id


def test_a_name_that_mlflow_refuses_is_one_message(write_sweep: WriteSweep, output_dir: Path) -> None:
    strange = TRIALS[0].model_copy(update={"point": {"trainer.flags.a?b": 1}})
    for _ in range(2):
        with pytest.raises(UsageError, match=r"MLflow refused the import \(.*a\?b"):
            import_sweep(write_sweep((strange,), {}), SQLITE, output_dir)


@pytest.mark.slow
def test_a_store_that_is_made_anew_is_equal_to_the_one_before(
    write_sweep: WriteSweep, output_dir: Path, empty_store: Path
) -> None:
    sweep = write_sweep(TRIALS, HOW)
    import_sweep(sweep, SQLITE, output_dir)
    before = contents_of(output_dir)
    import_sweep(sweep, SQLITE, output_dir, anew=True)
    assert contents_of(output_dir) == before
    assert [path.name.split("-")[0] for path in move_store_aside(output_dir)] == ["mlflow.db.old", "mlartifacts.old"]
    assert move_store_aside(output_dir) == []
    elsewhere = output_dir / "elsewhere"  # this process keeps the store open that it knows under the old name
    elsewhere.mkdir()
    shutil.copy(empty_store, database_path(elsewhere))
    import_sweep(sweep, SQLITE, elsewhere, anew=True)
    assert contents_of(elsewhere) == before


def test_runs_with_the_keys_of_an_earlier_version_are_replaced_by_runs_with_ours(
    write_sweep: WriteSweep, output_dir: Path
) -> None:
    sweep = write_sweep(TRIALS, HOW)
    import_sweep(sweep, SQLITE, output_dir)
    new, client = contents_of(output_dir), connect(SQLITE, output_dir)
    for name, run in runs_in(output_dir).items():
        old = "trials.COMPLETED" if name == "sweep" else "predicted.step_seconds"
        client.log_metric(run.info.run_id, old, 1.0)
        client.set_tag(run.info.run_id, "trisweep.digest", "of the earlier version")
    assert import_sweep(sweep, SQLITE, output_dir).created == 5
    assert contents_of(output_dir) == new
    assert import_sweep(sweep, SQLITE, output_dir).unchanged == 5


def test_an_experiment_of_another_program_is_left_alone(write_sweep: WriteSweep, output_dir: Path) -> None:
    client = connect(SQLITE, output_dir)
    foreign = client.create_experiment(SQLITE.experiment, artifact_location=artifact_dir(output_dir).as_uri())
    empty = client.create_run(foreign, run_name="somebody's regression")
    with refused(UsageError):
        import_sweep(write_sweep(TRIALS, HOW), SQLITE, output_dir)
    assert len(client.search_runs([foreign])) == 1
    client.delete_run(empty.info.run_id)
    assert import_sweep(write_sweep(TRIALS, HOW), SQLITE, output_dir).created == 5, "an empty one may be taken"


@pytest.mark.parametrize(
    "version",
    [
        "0584bdc529eb",
        "ffffffffffff",
    ],
)
def test_a_store_of_another_version_of_mlflow_says_what_helps(
    write_sweep: WriteSweep, output_dir: Path, version: str
) -> None:
    with closing(sqlite3.connect(database_path(output_dir))) as store:
        store.execute("UPDATE alembic_version SET version_num = ?", (version,))
        store.commit()
    with refused(UsageError, "mlflow db upgrade", recorded=False):
        import_sweep(write_sweep(TRIALS, HOW), SQLITE, output_dir)


def test_a_store_that_cannot_be_opened_is_one_message_within_seconds(write_sweep: WriteSweep, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    database_path(tmp_path / "runs").mkdir()
    start = time.monotonic()
    with refused(UsageError, "mlflow.db"):
        import_sweep(write_sweep(TRIALS, HOW), SQLITE, tmp_path / "runs")
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("name", ["mlflow.db", "mlflow.lock", "."])
def test_a_store_that_may_not_be_written_is_not_called_damaged(
    write_sweep: WriteSweep, tmp_path: Path, name: str
) -> None:
    sweep, closed = write_sweep(TRIALS[:1], {}), tmp_path / "store" / name
    (tmp_path / "store").mkdir()
    database_path(tmp_path / "store").touch()
    (tmp_path / "store" / "mlflow.lock").touch()
    closed.chmod(0o500)
    with bound_by_permissions(), refused(UsageError) as error:
        import_sweep(sweep, SQLITE, tmp_path / "store")
    assert "damaged" not in str(error.value)


def test_a_folder_that_mlflow_cannot_quote_is_said_before_it_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "an 'odd\" folder").mkdir()
    monkeypatch.chdir(tmp_path / "an 'odd\" folder")
    with refused(UsageError):
        connect(SQLITE, tmp_path)
    assert not database_path(tmp_path).exists()


def test_a_database_server_that_does_not_answer_is_one_message_within_seconds(
    write_sweep: WriteSweep, tmp_path: Path
) -> None:
    nowhere = TrackingSpec(kind="database", uri="postgresql://ada:secret@127.0.0.1:9/runs", experiment="made-up")
    start = time.monotonic()
    with refused(UsageError) as caught:
        import_sweep(write_sweep(TRIALS, HOW), nowhere, tmp_path)
    assert "secret" not in str(caught.value)
    assert time.monotonic() - start < 15


def test_a_baseline_that_cannot_exist_is_called_so(write_sweep: WriteSweep, output_dir: Path) -> None:
    nothing = trial("infeasible-", is_baseline=True, world_size=3, tensor_parallel_size=2)
    nothing = nothing.model_copy(update={"point": {}})
    import_sweep(write_sweep((nothing, STRONG), {"strong": performance(160.0, 2)}), SQLITE, output_dir)
    runs = runs_in(output_dir)
    assert runs["infeasible-"].info.run_name == "baseline"
    assert runs["sweep"].data.tags["baseline_outcome"] == "INFEASIBLE"


def test_points_that_a_sweep_no_longer_has_are_deleted_and_marked_where_they_were_measured(
    write_sweep: WriteSweep, output_dir: Path
) -> None:
    whole = write_sweep(TRIALS, HOW)
    import_sweep(whole, SQLITE, output_dir)
    restricted = Sweep(whole.folder, whole.record.model_copy(update={"trials": TRIALS[:2]}))
    import_sweep(restricted, SQLITE, output_dir)
    assert {name: run.data.tags["in_sweep"] for name, run in runs_in(output_dir).items()} == {
        "sweep": "true",
        "base": "true",
        "strong": "true",
        "weak": "false",
    }
    assert import_sweep(restricted, SQLITE, output_dir).unchanged == 3
    again = import_sweep(whole, SQLITE, output_dir)
    # The parent counts, the marked one is back, and with it the other two have values of every key that it sets.
    assert (again.created, again.updated, again.unchanged) == (1, 4, 0)
    assert runs_in(output_dir)["weak"].data.tags["in_sweep"] == "true"


def test_a_loss_that_is_no_number_is_kept_as_it_is(write_sweep: WriteSweep, output_dir: Path) -> None:
    sweep = write_sweep(TRIALS[:1])
    files = TrialFolder(sweep.folder.trial("base").path)
    files.path.mkdir(parents=True)
    for number, loss in enumerate((4.0, math.nan, math.inf), start=1):
        files.append_metrics(step(number).model_copy(update={"loss": loss}))
    finish(sweep.folder, TRIALS[0], (Outcome.FAILED, "the loss is not a number"))
    import_sweep(sweep, SQLITE, output_dir)
    run = runs_in(output_dir)["base"]
    history = connect(SQLITE, output_dir).get_metric_history(run.info.run_id, "step/loss")
    assert history[0].value == 4.0
    assert math.isnan(history[1].value)
    assert history[2].value > 1e300, "MLflow writes the largest number for infinity"
    assert import_sweep(sweep, SQLITE, output_dir).unchanged == 2


def test_two_contents_are_equal_exactly_when_their_digests_are() -> None:
    one = LoggedMetric("a", 1.0, 2, 3)
    assert repr(one) != repr(one._replace(value=1.0000000000000002))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk], check=False).returncode:
        pytest.skip("may not mount a disk")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk_is_named_without_a_traceback_and_the_import_goes_on_once_there_is_room(
    small_disk: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    sweep, output_dir = sweep_writer(small_disk)(TRIALS, HOW), small_disk / "runs"
    import_sweep(sweep, SQLITE, output_dir)
    finish(sweep.folder, STRONG, performance(150.0, 2))
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    with refused(UsageError):
        import_sweep(sweep, SQLITE, output_dir)
    assert "Traceback" not in "".join(capfd.readouterr()) + caplog.text
    filler.unlink()
    assert import_sweep(sweep, SQLITE, output_dir).updated == 2


@pytest.mark.parametrize(
    ("said", "act"),
    [
        ("[Errno 28] No space left on device", "Free space"),
        ("(sqlite3.OperationalError) database or disk is full", "Free space"),
        ("(sqlite3.OperationalError) attempt to write a readonly database", "Make the store and its folder writable"),
        ("(sqlite3.OperationalError) database is locked", "Wait for the program that holds it"),
    ],
)
def test_a_known_fault_of_a_store_has_a_remedy_of_its_own(said: str, act: str) -> None:
    assert (remedy_of(said, "sqlite:///x") or "").startswith(act)
