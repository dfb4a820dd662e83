"""Puts new runs into a database by the hundred. MLflow's client takes a dozen transactions for each of them.

The rows are those that the client would write, in the tables of MLflow's own classes: a test compares the two. With
another release of MLflow, or tables of another schema, than was tried so, the client writes them.
"""

from __future__ import annotations

import logging
import math
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from results.mlflow.run_content import RunContent

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from sqlalchemy import Engine

Row: TypeAlias = dict[str, Any]

TRIED = ("3.17", "dc11669786a5")
"""The release of MLflow and the revision of its tables for which the rows have been compared with the client's."""

NOT_ASKED_FOR = {"source_type": "UNKNOWN", "source_name": "", "entry_point_name": "", "source_version": ""}
"""What MLflow writes of a run that nobody told more about."""


class NewRun(NamedTuple):
    """A run that the store does not hold yet.

    Attributes:
        tags: all that it has before its files are there; `seal` closes it afterwards.
    """

    run_id: str
    artifact_uri: str
    content: RunContent
    tags: Mapping[str, str]
    seal: Mapping[str, str]
    log_files: Callable[[Any], None]


def new_run(
    location: str,
    content: RunContent,
    tags: Mapping[str, str],
    seal: Mapping[str, str],
    log_files: Callable[[Any], None],
) -> NewRun:
    """A run with an id of its own, whose files are below the experiment's location."""
    from mlflow.utils.uri import append_to_uri_path

    run_id = uuid.uuid4().hex
    named = {**tags, "mlflow.runName": content.name}
    artifact_uri = append_to_uri_path(location, run_id, "artifacts")  # type: ignore[no-untyped-call]
    return NewRun(run_id, artifact_uri, content, named, seal, log_files)


def engine_of(client: MlflowClient) -> Engine | None:
    """The database behind a client; None where it asks a server, or where only the client is known to write well."""
    store = getattr(getattr(client, "_tracking_client", None), "store", None)
    engine: Engine | None = getattr(store, "engine", None)
    if engine is None or (found := _release_and_revision(engine)) == TRIED:
        return engine
    _say_untried(*found)
    return None


@cache
def _say_untried(release: str, revision: str) -> None:
    """Once, however many sweeps are imported."""
    slower = "its own client writes each new run by itself, which takes longer"
    logging.getLogger(__name__).warning(
        "MLflow %s with tables of revision %s has not been tried: %s.", release, revision or "unknown", slower
    )


def _release_and_revision(engine: Engine) -> tuple[str, str]:
    """Of MLflow and of the tables; the latter is empty where they do not say."""
    from mlflow.version import VERSION
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with engine.connect() as connection:
            revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    except SQLAlchemyError:
        revision = None
    return ".".join(VERSION.split(".")[:2]), str(revision or "")


def insert_runs(engine: Engine, experiment_id: str, runs: Sequence[NewRun]) -> None:
    """Write all but the seals, in one transaction."""
    from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlMetric, SqlParam, SqlRun, SqlTag

    metrics = [list(_metric_rows(run)) for run in runs]
    _insert(
        engine,
        {
            SqlRun: [_run_row(run, int(experiment_id)) for run in runs],
            SqlTag: [row for run in runs for row in _tag_rows(run.run_id, run.tags)],
            SqlParam: [row for run in runs for row in _param_rows(run)],
            SqlMetric: [row for rows in metrics for row in rows],
            SqlLatestMetric: [row for rows in metrics for row in _latest(rows)],
        },
    )


def seal_runs(engine: Engine, runs: Sequence[NewRun]) -> None:
    from mlflow.store.tracking.dbmodels.models import SqlTag

    _insert(engine, {SqlTag: [row for run in runs for row in _tag_rows(run.run_id, run.seal)]})


def _insert(engine: Engine, rows: Mapping[Any, list[Row]]) -> None:
    with engine.begin() as connection:
        for table, of_table in rows.items():
            if of_table:
                connection.execute(table.__table__.insert(), of_table)


def _run_row(run: NewRun, experiment_id: int) -> Row:
    content = run.content
    return NOT_ASKED_FOR | {
        "run_uuid": run.run_id,
        "name": content.name,
        "user_id": run.tags["mlflow.user"],
        "status": content.status,
        "start_time": content.start_ms,
        "end_time": content.end_ms,
        "lifecycle_stage": "active",
        "artifact_uri": run.artifact_uri,
        "experiment_id": experiment_id,
    }


def _tag_rows(run_id: str, tags: Mapping[str, str]) -> Iterator[Row]:
    for key, value in tags.items():
        _require_name(key)
        yield {"run_uuid": run_id, "key": key, "value": value}


def _param_rows(run: NewRun) -> Iterator[Row]:
    for key, value in run.content.params.items():
        _require_name(key)
        yield {"run_uuid": run.run_id, "key": key, "value": value}


def _metric_rows(run: NewRun) -> Iterator[Row]:
    """Every value once, as the table takes none twice; infinity is the largest number, and no number is zero."""
    for metric in dict.fromkeys(run.content.metrics_after(0)):
        _require_name(metric.key)
        is_nan = math.isnan(metric.value)
        value = 0.0 if is_nan else max(-sys.float_info.max, min(sys.float_info.max, metric.value))
        yield {
            "run_uuid": run.run_id,
            "key": metric.key,
            "value": value,
            "is_nan": is_nan,
            "timestamp": metric.timestamp_ms,
            "step": metric.step,
        }


def _latest(rows: Sequence[Row]) -> list[Row]:
    """The last value of each metric, which MLflow keeps once more."""
    last: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: (row["step"], row["timestamp"], row["value"])):
        last[row["key"]] = row
    return list(last.values())


@cache
def _require_name(key: str) -> None:
    """Refuse what MLflow refuses as the name of a param, a metric or a tag; the same ones come thousands of times."""
    from mlflow.utils.validation import _validate_tag

    _validate_tag(key, "")  # type: ignore[no-untyped-call]
