"""Importing into a real SQLite MLflow store."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from conf.errors import UsageError
from conf.types.sites import TrackingSpec
from results.mlflow import run_content, sweep_import, writer
from results.mlflow.store import QUIET_SETTINGS, connect, database_path
from results.mlflow.sweep_import import ImportSummary, import_sweep, import_training
from sweeps.reading import Reading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, SweepRecord
from tests.messages import refused
from tests.results.conftest import CREATED, SQLITE, WriteSweep, finish, performance, trial, write_steps
from train_core.trial.measurement import Outcome

pytestmark = pytest.mark.filterwarnings(
    # MLflow's own dependencies and models; none of them is ours to correct.
    "ignore::DeprecationWarning",
    "ignore::ResourceWarning",
)

TRIALS = (
    trial("base", is_baseline=True),
    trial("two", world_size=2, tensor_parallel_size=2),
    trial("dead", world_size=2),
    trial("waiting", world_size=2, pipeline_parallel_size=2),
    trial("impossible", world_size=3, tensor_parallel_size=2),
)
HOW = {"base": performance(100.0), "dead": (Outcome.OUT_OF_MEMORY, "rank 1 ran out of memory")}


class Store:
    """A sweep and the store it is imported into."""

    def __init__(self, folder: SweepFolder, record: SweepRecord, output_dir: Path) -> None:
        self.folder, self.record, self.output_dir = folder, record, output_dir

    def load(self) -> ImportSummary:
        return import_sweep(Sweep(self.folder, self.record), SQLITE, self.output_dir)

    def client(self) -> Any:
        return connect(SQLITE, self.output_dir)

    def runs(self, experiment_id: str = "1") -> dict[str, Any]:
        """Active runs by trial id; the parent is `sweep`."""
        found = self.client().search_runs([experiment_id], max_results=1000)
        return {run.data.tags.get("trial_id", "sweep"): run for run in found if "sweep" in run.data.tags}

    def snapshot(self) -> dict[str, Any]:
        """Everything a second import must not change."""
        client = self.client()
        return {
            name: (
                run.info.run_id,
                run.info.status,
                run.info.start_time,
                run.info.end_time,
                dict(run.data.tags),
                {key: len(client.get_metric_history(run.info.run_id, key)) for key in run.data.metrics},
            )
            for name, run in self.runs().items()
        }


@pytest.fixture
def store(write_sweep: WriteSweep, tmp_path: Path, empty_store: Path) -> Store:
    folder, record, _ = write_sweep(TRIALS, HOW)
    output_dir = tmp_path / "runs"
    shutil.copy(empty_store, database_path(output_dir))  # creating the tables costs 2 s each time
    return Store(folder, record, output_dir)


def test_one_parent_and_one_child_per_trial(store: Store) -> None:
    summary = store.load()
    runs = store.runs()
    assert (summary.created, summary.updated, summary.unchanged) == (6, 0, 0)
    assert set(runs) == {"sweep", *(member.trial_id for member in TRIALS)}
    parents = {run.data.tags.get("mlflow.parentRunId") for name, run in runs.items() if name != "sweep"}
    assert parents == {runs["sweep"].info.run_id} == {summary.run_id}


def test_a_completed_trial_has_its_numbers_params_and_times(store: Store) -> None:
    store.load()
    base = store.runs()["base"]
    assert base.data.metrics["meas/step_s"] == pytest.approx(2.56)
    assert base.data.metrics["pred/step_s"] == pytest.approx(1.11)
    assert base.data.metrics["meas/mem_GiB"] == 0.5
    assert base.data.metrics["meas/TFLOPS"] == pytest.approx(0.1)
    assert base.data.metrics["meas/MFU_pct"] == pytest.approx(10)
    assert base.data.params["tp"] == "1"
    assert base.data.params["parallel.tensor_parallel_size"] == "1"
    assert base.data.params["model.hidden_size"] == "64"
    assert (base.data.tags["outcome"], base.data.tags["measured"]) == ("COMPLETED", "true")
    assert base.data.tags["flops_formula"] == "made-up-v0"
    begun = int((CREATED + 1 - 2.56 * 1.01) * 1000)
    assert (base.info.start_time, base.info.end_time) == (begun, (CREATED + 60) * 1000), "the first step's beginning"
    history = store.client().get_metric_history(base.info.run_id, "step/loss")
    assert [metric.step for metric in history] == [1, 2, 3, 4, 5, 6]
    assert history[0].timestamp == (CREATED + 1) * 1000
    watts = store.client().get_metric_history(base.info.run_id, "system/watts")
    assert [(metric.step, metric.value) for metric in watts] == [(3, 300.0), (6, 300.0)]
    system = {key: value for key, value in base.data.metrics.items() if key.startswith("system/")}
    assert system == {"system/watts": 300.0, "system/cpu_cores": 1.5, "system/rss_GiB": 0.5}
    assert base.data.metrics["meas/rank_mem_GiB"] == 0.5


def test_a_long_training_is_a_run_of_its_own_and_grows(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, training = SweepFolder(tmp_path / "trainings"), trial("long")
    files = folder.trial("long")
    write_steps(folder, "long", range(1, 4))

    def load() -> tuple[ImportSummary, Any]:
        summary = import_training(
            Reading(folder=files, experiment=training.experiment),
            store.record,
            "base",
            store.record.tracking,
            store.output_dir,
        )
        return summary, store.client().get_run(summary.run_id)

    first, run = load()
    assert (first.created, run.info.status, run.info.run_name) == (1, "RUNNING", "training long")
    assert run.data.tags["from_trial"] == "base"
    assert "mlflow.parentRunId" not in run.data.tags
    write_steps(folder, "long", (4, 5))
    logged, client_type = list[int](), type(store.client())
    log_batch = client_type.log_batch

    def counting(client: Any, run_id: str, metrics: Any = (), *others: Any, **named: Any) -> None:
        logged.extend(metric.step for metric in metrics if metric.key == "step/loss")
        log_batch(client, run_id, metrics, *others, **named)

    monkeypatch.setattr(client_type, "log_batch", counting)
    second, run = load()
    assert logged == [4, 5], "twenty thousand steps are not sent again whenever somebody looks"
    assert (second.updated, second.run_id) == (1, first.run_id)
    history = store.client().get_metric_history(second.run_id, "step/loss")
    assert [metric.step for metric in history] == [1, 2, 3, 4, 5]
    finish(folder, training, performance(100.0))
    _third, run = load()
    assert (run.info.status, run.data.metrics["meas/step_s"]) == ("FINISHED", pytest.approx(2.56))
    assert load()[0].unchanged == 1
    assert store.load().created == 6, "the sweep's own runs are others"


def test_a_value_longer_than_mlflow_keeps_is_no_reason_for_another_run(store: Store) -> None:
    trials = store.record.trials
    long = {"trainer.flags.config": "x" * 7000}
    changed = [one.model_copy(update={"point": long}) if one.trial_id == "two" else one for one in trials]
    store.record = store.record.model_copy(update={"trials": tuple(changed)})
    write_steps(store.folder, "two", range(1, 4))
    store.load()
    first = store.runs()["two"].info.run_id
    write_steps(store.folder, "two", (4, 5))
    assert store.load().created == 0
    assert store.runs()["two"].info.run_id == first


def test_outcomes_become_statuses_and_causes_become_tags(store: Store) -> None:
    store.load()
    runs = store.runs()
    statuses = {name: run.info.status for name, run in runs.items()}
    assert statuses == {
        "sweep": "RUNNING",
        "base": "FINISHED",
        "two": "SCHEDULED",
        "dead": "FAILED",
        "waiting": "SCHEDULED",
        "impossible": "KILLED",
    }
    assert runs["dead"].data.tags["cause"] == "rank 1 ran out of memory"
    assert runs["impossible"].data.tags["outcome"] == "INFEASIBLE"
    assert runs["two"].data.tags["measured"] == "false"


def test_the_artifacts_are_few_and_each_says_something(store: Store) -> None:
    store.load()
    client, base = store.client(), store.runs()["base"]
    names = {item.path for item in client.list_artifacts(base.info.run_id)}
    assert names == {"config.json", "estimate.json", "measurement.json", "log_tail.txt"}
    assert base.info.artifact_uri.startswith((store.output_dir / "mlartifacts").as_uri())
    local = client.download_artifacts(base.info.run_id, "config.json", str(store.output_dir))
    assert json.loads(Path(local).read_text())["model"]["name"] == "made-up-proxy"


def test_importing_twice_changes_nothing(store: Store) -> None:
    store.load()
    before = store.snapshot()
    summary = store.load()
    assert (summary.created, summary.updated, summary.unchanged) == (0, 0, 6)
    assert store.snapshot() == before


def test_an_import_that_changes_nothing_does_not_wait_for_mlflow(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first = store.load()
    monkeypatch.setattr(writer, "connect", None)
    again = store.load()
    assert (again.created, again.updated, again.unchanged) == (0, 0, 6)
    assert (again.uri, again.experiment_id, again.run_id) == (first.uri, first.experiment_id, first.run_id)


def test_a_moved_sweep_is_still_the_same_sweep(store: Store) -> None:
    store.load()
    moved = store.folder.path.rename(store.output_dir / "elsewhere")
    store.folder = SweepFolder(moved)
    assert store.load().unchanged == 6


def test_a_run_begins_with_the_first_step_and_stays_the_same_until_the_trial_has_ended(store: Store) -> None:
    store.load()
    waiting = store.runs()["two"].info.run_id
    write_steps(store.folder, "two", [1, 2, 3])
    begun = store.load()
    assert (begun.created, begun.updated) == (1, 1), "MLflow changes no start; the parent counts outcomes"
    running = store.runs()["two"].info
    assert (running.run_id != waiting, running.status) == (True, "RUNNING")
    assert running.start_time == int((CREATED + 1 - 2.56 * 1.01) * 1000)
    write_steps(store.folder, "two", [4, 5, 6])
    finish(store.folder, TRIALS[1], performance(150.0))
    assert store.load().updated == 2, "the trial, and the sweep that counts outcomes"
    done = store.runs()["two"]
    assert (done.info.run_id, done.info.status) == (running.run_id, "FINISHED")
    assert done.data.tags["outcome"] == "COMPLETED"
    history = store.client().get_metric_history(running.run_id, "step/loss")
    assert [metric.step for metric in history] == [1, 2, 3, 4, 5, 6]


def test_a_step_that_a_finished_trial_wrote_late_is_imported_too(store: Store) -> None:
    store.load()
    write_steps(store.folder, "base", [7])
    late = store.load()
    assert (late.created, late.updated, late.unchanged) == (0, 1, 5)
    history = store.client().get_metric_history(store.runs()["base"].info.run_id, "step/loss")
    assert [metric.step for metric in history] == [1, 2, 3, 4, 5, 6, 7]
    assert store.load().unchanged == 6


def test_a_trial_that_starts_over_gets_a_new_run_and_the_old_one_is_deleted(store: Store) -> None:
    store.load()
    first = store.runs()["base"].info.run_id
    store.folder.trial("base").clear_results()
    store.load()
    second = store.runs()["base"]
    assert (second.info.status, len(store.runs())) == ("SCHEDULED", 6)
    assert second.info.run_id != first
    assert store.client().get_run(first).info.lifecycle_stage == "deleted"


def test_an_import_that_was_interrupted_is_completed_by_the_next_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = run_content.log_trial_files

    def interrupted(client: Any, run_id: str, reading: Reading) -> None:
        if reading.name == "dead":
            raise KeyboardInterrupt
        real(client, run_id, reading)

    monkeypatch.setattr(sweep_import, "log_trial_files", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.load()
    monkeypatch.undo()
    summary = store.load()
    assert (summary.created, summary.updated, summary.unchanged) == (2, 1, 3)
    assert store.runs()["two"].info.status == "SCHEDULED"
    assert store.runs()["dead"].info.status == "FAILED"
    assert len(store.runs()) == 6


def test_deleted_and_foreign_runs_do_not_confuse_it(store: Store) -> None:
    store.load()
    client = store.client()
    client.create_run("1", run_name="somebody else's")
    client.create_run("1", tags={"trial_id": "base", "trisweep.key": "base"}, run_name="a look-alike")
    client.delete_run(store.runs()["dead"].info.run_id)
    summary = store.load()
    assert (summary.created, summary.updated, summary.unchanged) == (1, 0, 5)
    assert store.runs()["dead"].info.lifecycle_stage == "active"


def test_two_sweeps_of_one_name_do_not_share_runs(store: Store, write_sweep: WriteSweep) -> None:
    store.load()
    other, record, _ = write_sweep(TRIALS, HOW, name="another")
    assert import_sweep(Sweep(other, record), SQLITE, store.output_dir).created == 6
    assert store.load().unchanged == 6


def test_a_deleted_experiment_comes_back_by_the_command_that_is_printed(store: Store) -> None:
    store.load()
    store.client().delete_experiment("1")
    with refused(UsageError) as caught:
        store.load()
    (command,) = re.findall("`(.*)`", str(caught.value))
    nowhere = {"PATH": "/bin"}  # as for who gave `.venv/bin/trisweep`
    done = subprocess.run(["/bin/sh", "-c", command], env=nowhere, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert store.load().unchanged == 6


def test_two_imports_at_once_take_turns(store: Store) -> None:
    summaries: list[ImportSummary] = []
    threads = [threading.Thread(target=lambda: summaries.append(store.load())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(summary.created for summary in summaries) == [0, 0, 6]


def test_a_second_process_waits_for_the_lock_and_then_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from filelock import FileLock

    monkeypatch.setattr(sweep_import, "LOCK_WAIT_SECONDS", 0.2)
    with (
        FileLock(store.output_dir / "mlflow.lock"),
        refused(UsageError),
    ):
        store.load()


@pytest.mark.slow
def test_a_damaged_store_is_one_message_and_the_folders_rebuild_it(store: Store) -> None:
    database_path(store.output_dir).write_text("no database at all " * 100)
    with refused(UsageError):
        store.load()
    store.output_dir = store.output_dir / "fresh"
    assert store.load().created == 6


def test_an_artifact_folder_that_cannot_be_written_is_one_message(store: Store) -> None:
    (store.output_dir / "mlartifacts").write_text("a file where a folder should be")
    with refused(UsageError):
        store.load()


def test_an_unreachable_server_is_said_within_seconds(store: Store) -> None:
    nowhere = TrackingSpec(kind="server", uri="http://127.0.0.1:9", experiment="made-up")
    start = time.monotonic()
    with refused(UsageError, "tracking.uri"):
        import_sweep(Sweep(store.folder, store.record), nowhere, store.output_dir)
    assert time.monotonic() - start < 10


def test_a_record_whose_address_no_server_has_is_said_by_it(store: Store) -> None:
    nowhere = TrackingSpec(kind="server", uri="nowhere:5000", experiment="made-up")
    with refused(UsageError, "tracking.uri"):
        import_sweep(Sweep(store.folder, store.record), nowhere, store.output_dir)


def test_a_password_in_the_address_is_not_in_the_message(store: Store) -> None:
    nowhere = TrackingSpec(kind="server", uri="http://ada:secret@127.0.0.1:9", experiment="made-up")
    with refused(UsageError, "tracking.uri"):
        import_sweep(Sweep(store.folder, store.record), nowhere, store.output_dir)


def test_telemetry_is_off_once_a_store_is_opened(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where MLflow sees no test around it."""
    from mlflow.telemetry import utils

    monkeypatch.setattr(utils, "_IS_IN_CI_ENV_OR_TESTING", False)
    for name in QUIET_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    assert not utils.is_telemetry_disabled()
    store.client()
    assert utils.is_telemetry_disabled()


@pytest.mark.thorough  # than telemetry that is off; it is quiet too, in a process of its own
@pytest.mark.slow
def test_it_is_quiet_and_never_phones_home(store: Store, tmp_path: Path) -> None:
    """In a process of its own: no output, telemetry off, and a fresh store."""
    database_path(store.output_dir).unlink()
    program = (
        "import os, sys; from pathlib import Path\n"
        "from results.mlflow.sweep_import import import_sweep\n"
        "from sweeps.sweep import Sweep; from sweeps.trial import SweepFolder\n"
        f"sweep = Sweep.stored_in(SweepFolder({str(store.folder.path)!r}))\n"
        f"import_sweep(sweep, sweep.record.tracking, Path({str(store.output_dir)!r}))\n"
        "from mlflow.telemetry.utils import is_telemetry_disabled\n"
        "sys.exit(0 if is_telemetry_disabled() else 3)\n"
    )
    clean = {key: value for key, value in os.environ.items() if key not in ("CI", "PYTEST_CURRENT_TEST")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=clean, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
