"""Put a sweep into MLflow.

Only this module writes to the store, one process at a time, and the folders stay the truth. There is one parent run per
sweep with one child per trial, and one run per long training; they are found again by tags. A run whose content has not
changed since the last import is left alone, so importing twice changes nothing; one that has progressed is brought up
to date.
"""

from __future__ import annotations

import getpass
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from conf.credentials import hide_credentials
from conf.errors import UsageError
from conf.sites import TrackingSpec
from results.mlflow.run_content import LoggedMetric, RunContent, sweep_run, training_run, trial_run
from results.mlflow.store import connect, experiment_id, tracking_uri
from results.mlflow.stored_runs import DIGEST, KEY, SWEEP_ID, first_if_all_stored
from sweeps.reading import Reading, TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepRecord
from train_core.whole_files import write_atomically

if TYPE_CHECKING:
    from mlflow import MlflowClient

LOCK_WAIT_SECONDS = 120.0
# MLflow refuses a request with more entries than this in all, or with more params than this.
BATCH_LIMIT = 1000
PARAM_LIMIT = 100
ATTEMPT, LAST_STEP = "trisweep.attempt", "trisweep.last_step"


@dataclass(frozen=True)
class ImportSummary:
    """What an import did.

    Attributes:
        uri: the MLflow store.
        run_id: of the sweep, or of the training.
        created, updated, unchanged: numbers of runs, the parent included.
    """

    uri: str
    experiment_id: str
    run_id: str
    created: int
    updated: int
    unchanged: int


def import_sweep(
    sweep: Sweep,
    tracking: TrackingSpec,
    output_dir: Path,
    read: Callable[[Sweep], Sequence[TrialReading]] = Sweep.read,
) -> ImportSummary:
    """Bring the runs of this sweep up to date with its folder.

    Args:
        read: called once no other import runs, as an older state could undo a newer one.

    Raises:
        UsageError: the server does not answer or refuses, or another import holds the store for two minutes.
    """
    with _only_writer(output_dir), _failures_explained(tracking):
        folder, record = sweep
        results = read(sweep)
        whole, trials = sweep_run(record, results), [trial_run(record, result) for result in results]
        sweep_id = _tracking_id(folder.tracking_id)
        if unchanged := _nothing_to_do([whole, *trials], tracking, output_dir, sweep_id):
            return unchanged
        importer = _Importer(connect(tracking, output_dir), tracking, output_dir, sweep_id)
        parent = importer.sync(whole, None)
        # The seal comes after the artifacts: an import that dies in between is then repeated.
        if parent.is_stale:
            importer.client.log_artifact(parent.run_id, str(folder.record))
            importer.seal(parent)
        for trial, result in zip(trials, results, strict=True):
            importer.sync_with_artifacts(trial, parent.run_id, result)
    return importer.summary(parent.run_id)


def import_training(
    training: Reading,
    record: SweepRecord,
    from_trial: str,
    tracking: TrackingSpec,
    output_dir: Path,
) -> ImportSummary:
    """Bring the run of a long training up to date with its folder: losses, rates, and how it ended.

    Args:
        record: of the sweep whose trial `from_trial` gave its plan.
        tracking: the record's, with the credentials that it does not keep.

    Raises:
        UsageError: as `import_sweep`.
    """
    with _only_writer(output_dir), _failures_explained(tracking):
        content = training_run(record, training, from_trial)
        training_id = _tracking_id(training.folder.tracking_id)
        if unchanged := _nothing_to_do([content], tracking, output_dir, training_id):
            return unchanged
        importer = _Importer(connect(tracking, output_dir), tracking, output_dir, training_id)
        return importer.summary(importer.sync_with_artifacts(content, None, training))


def _nothing_to_do(
    contents: Sequence[RunContent], tracking: TrackingSpec, output_dir: Path, sweep_id: str
) -> ImportSummary | None:
    """The summary of an import that would change nothing, without waiting for MLflow; None where one is needed."""
    first = first_if_all_stored(contents, tracking, output_dir, sweep_id)
    if first is None:
        return None
    uri = tracking_uri(tracking, output_dir)
    return ImportSummary(uri, first.experiment_id, first.run_id, created=0, updated=0, unchanged=len(contents))


@dataclass(frozen=True)
class _Synced:
    """A run that holds its content; `is_stale` until its artifacts are there too."""

    run_id: str
    content: RunContent
    is_stale: bool


class _Importer:
    """Writes run contents into one experiment, for one sweep or one long training."""

    def __init__(self, client: MlflowClient, tracking: TrackingSpec, output_dir: Path, sweep_id: str) -> None:
        self.client, self.uri = client, tracking_uri(tracking, output_dir)
        self.sweep_id = sweep_id
        self.experiment_id = experiment_id(client, tracking, output_dir)
        self.counts = {"created": 0, "updated": 0, "unchanged": 0}
        self._existing = self._find()

    def sync(self, content: RunContent, parent_run_id: str | None) -> _Synced:
        """The run of `content`, created or brought up to date as needed."""
        run = self._existing.get(content.key)
        if run is not None and run.data.tags.get(DIGEST) == content.digest:
            self.counts["unchanged"] += 1
            return _Synced(run.info.run_id, content, is_stale=False)
        if run is not None and _starts_over(run, content):
            self.client.delete_run(run.info.run_id)
            run = None
        self.counts["updated" if run else "created"] += 1
        run_id = run.info.run_id if run else self._create(content, parent_run_id)
        self._log(run_id, content, run)
        return _Synced(run_id, content, is_stale=True)

    def sync_with_artifacts(self, content: RunContent, parent_run_id: str | None, reading: Reading) -> str:
        """Sync the run, add the files that the trial wrote, close it, and return its id."""
        synced = self.sync(content, parent_run_id)
        if synced.is_stale:
            _log_artifacts(self.client, synced.run_id, reading)
            self.seal(synced)
        return synced.run_id

    def summary(self, run_id: str) -> ImportSummary:
        return ImportSummary(self.uri, self.experiment_id, run_id, **self.counts)

    def seal(self, synced: _Synced) -> None:
        """Close the run and write its digest, last of all, so that an import that was interrupted is repeated."""
        content = synced.content
        if content.end_ms is None:
            self.client.update_run(synced.run_id, status=content.status)
        else:
            self.client.set_terminated(synced.run_id, content.status, content.end_ms)
        self.client.set_tag(synced.run_id, LAST_STEP, str(content.last_step))
        self.client.set_tag(synced.run_id, DIGEST, content.digest)

    def _find(self) -> dict[str, Any]:
        """Runs of this sweep by key, deleted ones left out."""
        found: dict[str, Any] = {}
        token: str | None = None
        while True:
            page = self.client.search_runs(
                [self.experiment_id], f"tags.`{SWEEP_ID}` = '{self.sweep_id}'", max_results=1000, page_token=token
            )
            found |= {run.data.tags[KEY]: run for run in page if KEY in run.data.tags}
            token = page.token
            if not token:
                return found

    def _create(self, content: RunContent, parent_run_id: str | None) -> str:
        tags = {SWEEP_ID: self.sweep_id, KEY: content.key, "mlflow.user": getpass.getuser()}
        tags |= {"mlflow.parentRunId": parent_run_id} if parent_run_id else {}
        run = self.client.create_run(self.experiment_id, content.start_ms, tags, content.name)
        return str(run.info.run_id)

    def _log(self, run_id: str, content: RunContent, known: Any | None) -> None:
        """Tags, params and metrics, but for the steps that the known run holds; no metric is stored twice."""
        from mlflow.entities import Param, RunTag

        tags = [RunTag(key, value) for key, value in (content.tags | {ATTEMPT: content.attempt}).items()]
        known_params, last_step = (known.data.params, int(known.data.tags.get(LAST_STEP, 0))) if known else ({}, 0)
        # MLflow refuses a param that is logged again with another value.
        params = [Param(key, value) for key, value in content.params.items() if key not in known_params]
        first, *rest = _batches(content.metrics_after(last_step), BATCH_LIMIT - PARAM_LIMIT - len(tags))
        self.client.log_batch(run_id, first, params[:PARAM_LIMIT], tags)
        for metrics in rest:
            self.client.log_batch(run_id, metrics)


def _starts_over(run: Any, content: RunContent) -> bool:
    """Whether the trial was measured anew, or is no longer finished.

    MLflow cannot take metrics back, so such a run is deleted and another one begun.
    """
    attempt = run.data.tags.get(ATTEMPT, "")
    was_final = run.info.end_time is not None
    return bool(attempt and attempt != content.attempt) or (
        was_final and content.end_ms is None and content.key != "sweep"
    )


def _batches(metrics: Sequence[LoggedMetric], size: int) -> list[list[Any]]:
    """At least one batch, even when there is no metric."""
    from mlflow.entities import Metric

    logged = [Metric(metric.key, metric.value, metric.timestamp_ms, metric.step) for metric in metrics]
    return [logged[start : start + size] for start in range(0, max(1, len(logged)), size)]


def _log_artifacts(client: MlflowClient, run_id: str, reading: Reading) -> None:
    """Store the resolved experiment, what the trial wrote, and its logs."""
    files = reading.folder
    if reading.experiment:
        # What another program finds in its environment may be a password.
        content = reading.experiment.model_dump_json(indent=1, exclude={"trainer": {"environment"}})
        client.log_text(run_id, content, "experiment.json")
    for path in (files.measurement, files.metrics):
        if path.exists():
            client.log_artifact(run_id, str(path))
    if files.logs.is_dir() and any(files.logs.iterdir()):
        client.log_artifacts(run_id, str(files.logs), "logs")


def _tracking_id(path: Path) -> str:
    """The name in MLflow of what the folder holds, which is made once and kept there."""
    # A path would not do: folders are moved, and two users may have sweeps of one name on one server.
    if not path.exists():
        write_atomically(path, uuid.uuid4().hex + "\n")
    return path.read_text().strip()


@contextmanager
def _only_writer(output_dir: Path) -> Iterator[None]:
    """Hold the store's lock: several processes that open an empty SQLite store at once destroy it."""
    output_dir.mkdir(parents=True, exist_ok=True)
    lock = output_dir / "mlflow.lock"
    try:
        with FileLock(lock, timeout=LOCK_WAIT_SECONDS):
            yield
    except Timeout:
        raise UsageError(f"Another import into MLflow holds {lock}", "Wait for it to end, then import again.") from None


@contextmanager
def _failures_explained(tracking: TrackingSpec) -> Iterator[None]:
    """Turn what MLflow raises into one message; its own traceback goes to the debug log."""
    try:
        yield
    except Exception as error:
        if not _is_store_error(error):
            raise
        logging.getLogger(__name__).debug("import into MLflow failed", exc_info=True)
        first_line = hide_credentials(str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"tracking.kind = {tracking.kind!r}: MLflow refused the import ({first_line[:300]})",
            "The sweep's folders keep everything: import again once the store works, or move a damaged store aside.",
        ) from error


def _is_store_error(error: Exception) -> bool:
    """Whether the error is one of the store.

    mlflow is imported only here, when there is an error: it costs 2 s, and must not precede the quiet settings.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return isinstance(error, MlflowException | SQLAlchemyError | OSError)
