"""Writes run contents into one experiment of MLflow, for one sweep or one long training.

A run is closed by its digest, which is written last. An import that dies in between leaves a run without one, and the
next import completes it: the store takes every value of a metric once, however often it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.types.sites import TrackingSpec
from results.mlflow.new_runs import NewRun, engine_of, insert_runs, new_run, seal_runs
from results.mlflow.run_content import SWEEP, RunContent
from results.mlflow.store import connect, database_path, experiment_id, tracking_uri
from results.mlflow.stored_runs import ATTEMPT, DIGEST, KEY, LAST_STEP, LEFT, PARENT, SWEEP_ID, StoredRun, stored_runs
from train_core.process.machine import this_user

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from sqlalchemy import Engine

TOGETHER = 100
"""So many new runs are one transaction of a database."""

# MLflow refuses a request with more entries than this in all, or with more params or tags than this.
BATCH_LIMIT = 1000
PARAM_LIMIT = 100

LogFiles = Callable[[Any], None]


class RunWriter:
    """The one writer of a sweep's runs, and what it has done so far. Of MLflow it asks nothing before it must write.

    Where the store is a database, new runs wait for each other until there are enough for a transaction.
    """

    def __init__(self, tracking: TrackingSpec, output_dir: Path, sweep_id: str, *, anew: bool = False) -> None:
        self.tracking, self.output_dir, self.sweep_id = tracking, output_dir, sweep_id
        self.uri = tracking_uri(tracking, output_dir)
        self.counts = {"created": 0, "updated": 0, "unchanged": 0}
        self._whole: dict[str, Any] = {}
        self._waiting: list[NewRun] = []
        stored = None
        if tracking.kind == "sqlite":  # its tables are asked, as MLflow takes a hundred times as long for whole runs
            stored = stored_runs(database_path(output_dir), tracking.experiment, sweep_id)
        self._existing = self._find() if stored is None else stored
        if anew:
            for run in self._existing.values():
                self.client.delete_run(run.run_id)
            self._existing = {}

    @cached_property
    def _opened(self) -> tuple[MlflowClient, str]:
        client = connect(self.tracking, self.output_dir)
        return client, experiment_id(client, self.tracking, self.output_dir)

    @property
    def is_connected(self) -> bool:
        return "_opened" in vars(self)

    @property
    def client(self) -> MlflowClient:
        return self._opened[0]

    @property
    def experiment_id(self) -> str:
        known = None if self.is_connected else next(iter(self._existing.values()), None)
        return known.experiment_id if known else self._opened[1]

    @cached_property
    def _engine(self) -> Engine | None:
        return engine_of(self.client)

    @cached_property
    def _artifact_location(self) -> str:
        return str(self.client.get_experiment(self.experiment_id).artifact_location)

    def write(self, content: RunContent, parent_run_id: str | None, log_files: LogFiles) -> str:
        """The id of the run of `content`, which is created or brought up to date as needed; see `write_waiting`."""
        stored = self._existing.get(content.key)
        if stored is not None and (stored.digest, stored.parent) == (content.digest, parent_run_id):
            # Its parent counts too, because somebody may have deleted the parent's run.
            self.counts["unchanged"] += 1
            return stored.run_id
        run = self._whole_run(stored) if stored is not None else None
        if run is not None and _starts_over(run, content):
            self.client.delete_run(run.info.run_id)
            run = None
        self.counts["updated" if run else "created"] += 1
        if run is not None:
            return self._complete(run, content, run, parent_run_id, log_files)
        tags = self._tags(content, parent_run_id) | {"mlflow.user": this_user()}
        if self._engine is None:
            run = self.client.create_run(self.experiment_id, content.start_ms, tags, content.name)
            return self._complete(run, content, None, parent_run_id, log_files)
        new = new_run(self._artifact_location, content, tags, _seal(content), log_files)
        self._waiting.append(new)
        if len(self._waiting) >= TOGETHER:
            self.write_waiting()
        return new.run_id

    def write_waiting(self) -> None:
        """Write the new runs that still wait for others."""
        runs, self._waiting = self._waiting, []
        if runs and self._engine is not None:
            insert_runs(self._engine, self.experiment_id, runs)
            for run in runs:
                run.log_files(self._repository(run.artifact_uri))
            seal_runs(self._engine, runs)

    def _complete(
        self, run: Any, content: RunContent, previous: Any | None, parent_run_id: str | None, log_files: LogFiles
    ) -> str:
        # Files, status and values come before the digest: a run with a digest is whole, whenever an import dies.
        log_files(self._repository(run.info.artifact_uri))
        self._close(run.info.run_id, content)
        self._log(run.info.run_id, content, previous, parent_run_id)
        return str(run.info.run_id)

    def leave(self, current: Collection[str]) -> None:
        """Runs of points whose keys the sweep no longer has: those that measured are marked, others deleted."""
        for key, stored in self._existing.items():
            if key in current or stored.digest == LEFT:
                continue
            if self._whole_run(stored).data.tags.get("measured") == "true":
                self.client.set_tag(stored.run_id, "in_sweep", "false")
                # A point that comes back is written anew, because no digest of a content is this word.
                self.client.set_tag(stored.run_id, DIGEST, LEFT)
            else:
                self.client.delete_run(stored.run_id)

    def _whole_run(self, stored: StoredRun) -> Any:
        return self._whole.get(stored.run_id) or self.client.get_run(stored.run_id)

    def _find(self) -> dict[str, StoredRun]:
        """Runs of this sweep by key, deleted ones left out."""
        token: str | None = None
        while True:
            page = self.client.search_runs(
                [self._opened[1]], f"tags.`{SWEEP_ID}` = '{self.sweep_id}'", max_results=1000, page_token=token
            )
            self._whole |= {run.info.run_id: run for run in page if KEY in run.data.tags}
            token = page.token
            if not token:
                return {run.data.tags[KEY]: _stored_run(run) for run in self._whole.values()}

    def _tags(self, content: RunContent, parent_run_id: str | None) -> dict[str, str]:
        own = {SWEEP_ID: self.sweep_id, KEY: content.key, ATTEMPT: content.attempt, "in_sweep": "true"}
        return content.tags | own | ({PARENT: parent_run_id} if parent_run_id else {})

    def _repository(self, artifact_uri: str) -> Any:
        # A client asks the store for the whole run before each file; the repository is asked for once.
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        return get_artifact_repository(artifact_uri, tracking_uri=self.uri)

    def _close(self, run_id: str, content: RunContent) -> None:
        if content.end_ms is None:
            self.client.update_run(run_id, status=content.status)
        else:
            self.client.set_terminated(run_id, content.status, content.end_ms)

    def _log(self, run_id: str, content: RunContent, stored: Any | None, parent_run_id: str | None) -> None:
        """Params, metrics but for the steps that the known run holds, and tags, the digest among the very last."""
        from mlflow.entities import Metric, Param, RunTag

        changed = self._tags(content, parent_run_id) if stored else {}
        tags = [RunTag(key, value) for key, value in (changed | _seal(content)).items()]
        known_params, last_step = (stored.data.params, int(stored.data.tags.get(LAST_STEP, 0))) if stored else ({}, 0)
        # MLflow refuses another value for a parameter that a run has, so that none is sent twice.
        params = [Param(key, value) for key, value in content.params.items() if key not in known_params]
        while len(params) > PARAM_LIMIT:
            self.client.log_batch(run_id, params=params[:PARAM_LIMIT])
            params = params[PARAM_LIMIT:]
        # The last request also holds the params and tags that are left, and all entries count together.
        size = BATCH_LIMIT - PARAM_LIMIT - len(tags)
        new = content.metrics_after(last_step)
        logged = [Metric(each.key, each.value, each.timestamp_ms, each.step) for each in new]
        # One batch at least, even where there is no metric.
        *rest, last = (logged[start : start + size] for start in range(0, max(1, len(logged)), size))
        for metrics in rest:
            self.client.log_batch(run_id, metrics)
        self.client.log_batch(run_id, last, params, tags)


def _seal(content: RunContent) -> dict[str, str]:
    return {LAST_STEP: str(content.last_step), DIGEST: content.digest}


def _stored_run(run: Any) -> StoredRun:
    tags = run.data.tags
    return StoredRun(run.info.run_id, run.info.experiment_id, tags.get(DIGEST), tags.get(PARENT))


def _starts_over(run: Any, content: RunContent) -> bool:
    """True if another run must take its place: MLflow takes no metric back, and changes no parameter and no start.

    So it is where the trial was measured anew or is no longer finished, where an earlier version of this package wrote
    other keys, and where a trial that was seen waiting, since when the sweep was planned, has started meanwhile.
    """
    attempt = run.data.tags.get(ATTEMPT, "")
    measured_anew = bool(attempt and attempt != content.attempt)
    reopened = run.info.end_time is not None and content.end_ms is None and content.key != SWEEP
    started = run.info.start_time != content.start_ms and content.key != SWEEP
    lost = run.data.metrics.keys() - content.metric_keys
    changed = any(content.params.get(key) != value for key, value in run.data.params.items())
    return measured_anew or reopened or started or bool(lost) or changed
