"""The MLflow store of a sweep: where it is, that it can be reached, and a quiet client for it."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sqlite3
import tempfile
from pathlib import Path
from stat import S_IMODE
from typing import TYPE_CHECKING

from conf.credentials import without_credentials
from conf.errors import UsageError
from conf.types.sites import TrackingSpec
from results.mlflow.reachable import (
    DamagedStore,
    mlflow_command,
    require_database,
    require_entry,
    require_server,
    require_sqlite,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient

JOURNAL_ENDS = ("-journal", "-wal", "-shm")
OWNER = "trisweep.experiment"
OURS = {OWNER: "true", "mlflow.experimentKind": "custom_model_development"}
"""Tags of our experiment. The second has MLflow open it on the table of runs, and not on a page about chats."""

QUIET_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight processes more, for features that are not used here
}


def database_path(output_dir: Path) -> Path:
    """The SQLite file of `tracking.kind=sqlite`."""
    return output_dir.resolve() / "mlflow.db"


def journals_of(database: Path) -> dict[str, Path]:
    """The files that a killed writer leaves beside a store; SQLite plays them into whatever next has its name."""
    beside = {end: database.with_name(f"{database.name}{end}") for end in JOURNAL_ENDS}
    return {end: path for end, path in beside.items() if path.exists()}


def artifact_dir(output_dir: Path) -> Path:
    """The artifact folder of `tracking.kind=sqlite`."""
    return output_dir.resolve() / "mlartifacts"


def tracking_uri(tracking: TrackingSpec, output_dir: Path) -> str:
    if tracking.kind == "sqlite":
        return f"sqlite:///{database_path(output_dir)}"
    assert tracking.uri is not None
    # SQLAlchemy's own choice of a driver for PostgreSQL differs from version to version; this one is installed.
    return tracking.uri.replace("postgresql://", "postgresql+psycopg2://", 1)


def apply_quiet_settings() -> None:
    """Set no telemetry, short time-outs and no chatter about migrations. What the user has exported stays."""
    for name, value in QUIET_SETTINGS.items():
        os.environ.setdefault(name, value)
    for noisy in ("alembic", "mlflow.tracking"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # It writes a traceback of what it raises as well, such as that the disk is full.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)


def connect(tracking: TrackingSpec, output_dir: Path) -> MlflowClient:
    """A client for the store; creates the SQLite file when there is none, and refuses a store that does not open.

    Raises:
        UsageError: the store cannot be opened, or the tracking server does not answer within seconds, or refuses.
    """
    apply_quiet_settings()
    uri = tracking_uri(tracking, output_dir)
    if tracking.kind == "sqlite":
        database_path(output_dir).parent.mkdir(parents=True, exist_ok=True)
        require_sqlite(database_path(output_dir))
        _leave_flushing_to_the_end()
        _make_tables(database_path(output_dir))
    elif tracking.kind == "database":
        require_database(uri)
    else:
        require_server(uri)
    from mlflow import MlflowClient  # costs 2 s; only those who need the store pay

    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    if tracking.kind == "server":
        require_entry(client, uri)
    return client


def _make_tables(database: Path) -> None:
    """Give a store that is not there yet MLflow's tables: all of them, or, if the process is ended meanwhile, no store.

    MLflow makes them in dozens of steps, and neither completes nor opens a store in which it was cut short.
    """
    if database.exists():
        return
    if {"'", '"'} <= set(here := os.fspath(Path.cwd())):  # MLflow writes the folder into SQL as Python would quote it
        problem = f"MLflow can make no store while the current folder is {here}, whose path holds both ' and \""
        raise UsageError(problem, "Give the command in another folder, and name this one with output_dir=PATH.")
    from mlflow import MlflowClient

    with tempfile.TemporaryDirectory(prefix="trisweep-mlflow-") as folder:
        complete, draft = Path(folder) / database.name, database.with_name(f".{database.name}.new")
        MlflowClient(tracking_uri=f"sqlite:///{complete}").search_experiments(max_results=1)
        shutil.copyfile(complete, draft)
    _open_as_before(database, draft)
    for path in journals_of(database).values():  # of a store that somebody has deleted
        path.unlink()
    draft.replace(database)
    _open_as_before(artifact_dir(database.parent), artifact_dir(database.parent))


def _open_as_before(path: Path, made: Path) -> None:
    """Let those read and write what takes the place of a part of the store who might in the part put aside last."""
    if before := sorted(path.parent.glob(f"{path.name}.old-*")):
        if not made.exists():
            made.mkdir()
        made.chmod(S_IMODE(before[-1].stat().st_mode))


def _leave_flushing_to_the_end() -> None:
    """Have SQLite write without waiting for the disk, which `flush` does once at the end of an import.

    MLflow commits several times for each run, and a commit that waits for the disk may take a tenth of a second. Should
    the power fail meanwhile, the store may be damaged, and `trisweep reindex` makes it anew from the folders.
    """
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    if not event.contains(Engine, "connect", _skip_flushing):
        event.listen(Engine, "connect", _skip_flushing)


def _skip_flushing(connection: object, _record: object) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


def flush(database: Path) -> None:
    """Wait until what was imported is on the disk."""
    with database.open("rb") as file:
        os.fsync(file.fileno())


def experiment_id(client: MlflowClient, tracking: TrackingSpec, output_dir: Path) -> str:
    """The id of the MLflow experiment, created when it does not exist; MLflow lets nobody recreate a deleted one.

    Raises:
        UsageError: an experiment of that name was deleted, which MLflow neither shows nor lets anyone recreate, or it
            is another program's, or keeps its files where the store was before it was moved or copied.
    """
    experiment = client.get_experiment_by_name(tracking.experiment)
    if experiment is None:
        location = None if tracking.kind == "server" else artifact_dir(output_dir).as_uri()
        return str(client.create_experiment(tracking.experiment, artifact_location=location, tags=OURS))
    if experiment.lifecycle_stage == "deleted":
        # MLflow's own command knows neither this store nor, outside of the environment, where it is itself.
        store = shlex.quote(f"MLFLOW_TRACKING_URI={without_credentials(tracking_uri(tracking, output_dir))}")
        restore = ("experiments", "restore", "--experiment-id", str(experiment.experiment_id))
        raise UsageError(
            f"tracking.experiment = {tracking.experiment!r} is deleted in MLflow",
            f"Bring it back with `env {store} {mlflow_command(*restore)}`, or choose another name with"
            " tracking.experiment=NAME.",
        )
    if tracking.kind == "sqlite":
        _require_beside(experiment.artifact_location, output_dir)
    if OWNER not in experiment.tags:
        _adopt(client, experiment.experiment_id, tracking.experiment)
    return str(experiment.experiment_id)


def require_made_here(tracking: TrackingSpec, output_dir: Path) -> None:
    """Raises DamagedStore for a store that was moved or copied, which this process may replace afterwards.

    MLflow keeps a store open that it knows by its address, so that another spelling of it is asked here.
    """
    from mlflow import MlflowClient

    path = database_path(output_dir)
    require_sqlite(path)
    if path.exists():
        experiment = MlflowClient(f"sqlite:///{path.parent}/./{path.name}").get_experiment_by_name(tracking.experiment)
        if experiment is not None:
            _require_beside(experiment.artifact_location, output_dir)


def _require_beside(location: str, output_dir: Path) -> None:
    """Refuse to write into the folder from which a store was moved or copied: MLflow keeps the whole path."""
    here = artifact_dir(output_dir)
    if location.endswith(f"/{here.name}") and location != here.as_uri():
        raise DamagedStore(
            f"The MLflow store {database_path(output_dir)} was made elsewhere: its files are in {location}",
            f"`trisweep reindex {shlex.quote(f'output_dir={here.parent}')}` makes it anew here, and keeps the old one.",
        )


def _adopt(client: MlflowClient, experiment_id: str, name: str) -> None:
    """Take an experiment over that is empty."""
    if first := client.search_runs([experiment_id], max_results=1):
        raise UsageError(
            f"tracking.experiment = {name!r} holds runs of another program, such as {first[0].info.run_name!r}",
            "Choose another name with tracking.experiment=NAME.",
        )
    for key, value in OURS.items():
        client.set_experiment_tag(experiment_id, key, value)
