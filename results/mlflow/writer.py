"""Writes run contents into one experiment of MLflow, for one sweep or one long training.

A run is closed by its digest, which is written last. An import that dies in between leaves a run without one, and the
next import completes it: the store takes every value of a metric once, however often it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from conf.types.sites import TrackingSpec
from results.mlflow.last_import import StoredRun
from results.mlflow.run_content import ATTEMPT, DIGEST, KEY, LAST_STEP, LEFT, PARENT, SWEEP, SWEEP_ID, RunContent
from results.mlflow.store import connect, experiment_id, tracking_uri
from train_core.process.machine import this_user

if TYPE_CHECKING:
    from mlflow import MlflowClient

    LogFiles: TypeAlias = Callable[[MlflowClient, str], None]
    """Gives a run its files, by the run's id."""

# MLflow refuses a request with more entries than this in all, or with more params or tags than this.
BATCH_LIMIT = 1000
PARAM_LIMIT = 100


class RunWriter:
    """The one writer of a sweep's runs, and what it has done so far. Of MLflow it asks nothing before it must write.

    Attributes:
        stored: the runs that the store has of the sweep, by their keys.
    """

    def __init__(
        self,
        tracking: TrackingSpec,
        output_dir: Path,
        sweep_id: str,
        known: Mapping[str, StoredRun] | None = None,
        *,
        anew: bool = False,
    ) -> None:
        """With `known` runs, which are all that the store has of the sweep, it is not asked for them."""
        self.tracking, self.output_dir, self.sweep_id = tracking, output_dir, sweep_id
        self.uri = tracking_uri(tracking, output_dir)
        self.counts = {"created": 0, "updated": 0, "unchanged": 0}
        self._whole: dict[str, Any] = {}
        self.stored = dict(self._find() if known is None else known)
        if anew:
            for run in self.stored.values():
                self.client.delete_run(run.run_id)
            self.stored = {}

    @cached_property
    def _opened(self) -> tuple[MlflowClient, str]:
        client = connect(self.tracking, self.output_dir)
        return client, experiment_id(client, self.tracking, self.output_dir)

    @property
    def client(self) -> MlflowClient:
        return self._opened[0]

    @property
    def experiment_id(self) -> str:
        known = None if "_opened" in vars(self) else next(iter(self.stored.values()), None)
        return known.experiment_id if known else self._opened[1]

    def write(self, content: RunContent, parent_run_id: str | None, log_files: LogFiles) -> str:
        """The id of the run of `content`, which is created or brought up to date as needed."""
        stored = self.stored.get(content.key)
        if stored is not None and (stored.digest, stored.parent) == (content.digest, parent_run_id):
            # Its parent counts too, because somebody may have deleted the parent's run.
            self.counts["unchanged"] += 1
            return stored.run_id
        known = self._whole_run(stored) if stored is not None else None
        if known is not None and _starts_over(known, content):
            self.client.delete_run(known.info.run_id)
            known = None
        self.counts["updated" if known else "created"] += 1
        run = known or self.client.create_run(
            self.experiment_id,
            content.start_ms,
            self._tags(content, parent_run_id) | {"mlflow.user": this_user()},
            content.name,
        )
        run_id = str(run.info.run_id)
        # Files, status and values come before the digest: a run with a digest is whole, whenever an import dies.
        log_files(self.client, run_id)
        self._close(run_id, content)
        self._log(run_id, content, known, parent_run_id)
        self.stored[content.key] = StoredRun(run_id, self.experiment_id, content.digest, parent_run_id)
        return run_id

    def leave(self, current: Collection[str]) -> None:
        """Runs of points whose keys the sweep no longer has: those that measured are marked, others deleted."""
        for key, stored in list(self.stored.items()):
            if key in current or stored.digest == LEFT:
                continue
            if (run := self._whole_run(stored)) is not None and run.data.tags.get("measured") == "true":
                self.client.set_tag(stored.run_id, "in_sweep", "false")
                # A point that comes back is written anew, because no digest of a content is this word.
                self.client.set_tag(stored.run_id, DIGEST, LEFT)
                self.stored[key] = replace(stored, digest=LEFT)
            else:
                self.client.delete_run(stored.run_id)
                del self.stored[key]

    def _whole_run(self, stored: StoredRun) -> Any | None:
        """The run with all that it holds; None where somebody has deleted it."""
        run = self._whole.get(stored.run_id) or self.client.get_run(stored.run_id)
        return run if run.info.lifecycle_stage == "active" else None

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

    def _close(self, run_id: str, content: RunContent) -> None:
        if content.end_ms is None:
            self.client.update_run(run_id, status=content.status)
        else:
            self.client.set_terminated(run_id, content.status, content.end_ms)

    def _log(self, run_id: str, content: RunContent, stored: Any | None, parent_run_id: str | None) -> None:
        """Params, metrics but for the steps that the known run holds, and tags, the digest among the very last."""
        from mlflow.entities import Metric, Param, RunTag

        changed = self._tags(content, parent_run_id) if stored else {}
        seal = {LAST_STEP: str(content.last_step), DIGEST: content.digest}
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
