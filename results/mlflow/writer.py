"""Writes run contents into one experiment of MLflow, for one sweep or one long training.

A run is closed by its digest, which is written last. An import that dies in between leaves a run without one, and the
next import completes it: the store takes every value of a metric once, however often it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from results.mlflow.run_content import SWEEP, RunContent
from results.mlflow.stored_runs import ATTEMPT, DIGEST, KEY, LAST_STEP, LEFT, PARENT, SWEEP_ID, StoredRun
from train_core.process.machine import this_user

if TYPE_CHECKING:
    from mlflow import MlflowClient

# MLflow refuses a request with more entries than this in all, or with more params or tags than this.
BATCH_LIMIT = 1000
PARAM_LIMIT = 100

LogFiles = Callable[[Any], None]


class RunWriter:
    """The one writer of a sweep's runs, and what it has done so far.

    Args:
        stored: the sweep's runs by key, where the store's tables could be asked. Else MLflow is, which takes a hundred
            times as long, because it gives whole runs.
    """

    def __init__(
        self,
        client: MlflowClient,
        uri: str,
        experiment_id: str,
        sweep_id: str,
        stored: Mapping[str, StoredRun] | None = None,
    ) -> None:
        self.client, self.uri = client, uri
        self.experiment_id, self.sweep_id = experiment_id, sweep_id
        self.counts = {"created": 0, "updated": 0, "unchanged": 0}
        self._whole: dict[str, Any] = {}
        self._existing = self._find() if stored is None else dict(stored)

    def write(self, content: RunContent, parent_run_id: str | None, log_files: LogFiles) -> str:
        """The id of the run of `content`, which is created or brought up to date as needed."""
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
        previous = run
        if run is None:
            tags = self._tags(content, parent_run_id) | {"mlflow.user": this_user()}
            run = self.client.create_run(self.experiment_id, content.start_ms, tags, content.name)
        # Files, status and values come before the digest: a run with a digest is whole, whenever an import dies.
        log_files(self._repository(run.info.artifact_uri))
        self._close(run.info.run_id, content)
        self._log(run.info.run_id, content, previous, parent_run_id)
        return str(run.info.run_id)

    def leave(self, contents: Sequence[RunContent]) -> None:
        """Runs of points that the sweep no longer has: those that measured something are marked, others deleted."""
        current = {content.key for content in contents}
        for key, stored in self._existing.items():
            if key in current or stored.digest == LEFT:
                continue
            if self._whole_run(stored).data.tags.get("measured") == "true":
                self.client.set_tag(stored.run_id, "in_sweep", "false")
                # A point that comes back is written anew, because no digest of a content is this word.
                self.client.set_tag(stored.run_id, DIGEST, LEFT)
            else:
                self.client.delete_run(stored.run_id)

    def delete_all(self) -> None:
        for stored in self._existing.values():
            self.client.delete_run(stored.run_id)
        self._existing = {}

    def _whole_run(self, stored: StoredRun) -> Any:
        return self._whole.get(stored.run_id) or self.client.get_run(stored.run_id)

    def _find(self) -> dict[str, StoredRun]:
        """Runs of this sweep by key, deleted ones left out."""
        token: str | None = None
        while True:
            page = self.client.search_runs(
                [self.experiment_id], f"tags.`{SWEEP_ID}` = '{self.sweep_id}'", max_results=1000, page_token=token
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

        seal = {LAST_STEP: str(content.last_step), DIGEST: content.digest}
        changed = self._tags(content, parent_run_id) if stored else {}
        tags = [RunTag(key, value) for key, value in (changed | seal).items()]
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
