"""The MLflow store of a sweep: where it is, that it can be reached, and a quiet client for it.

Everything that MLflow takes only from the environment is set here, just before mlflow is imported.
"""

from __future__ import annotations

import logging
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from conf.credentials import without_credentials
from conf.errors import UsageError
from conf.sites import TrackingSpec

if TYPE_CHECKING:
    from mlflow import MlflowClient

REACH_SECONDS = 5.0
QUIET_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight processes more, for features that are not used here
}


def database_path(output_dir: Path) -> Path:
    """The SQLite file of `tracking.kind=sqlite`."""
    return output_dir.resolve() / "mlflow.db"


def artifact_dir(output_dir: Path) -> Path:
    """The artifact folder of `tracking.kind=sqlite`."""
    return output_dir.resolve() / "mlartifacts"


def tracking_uri(tracking: TrackingSpec, output_dir: Path) -> str:
    """The URI of the store, as MLflow spells it."""
    if tracking.kind == "sqlite":
        return f"sqlite:///{database_path(output_dir)}"
    assert tracking.uri is not None
    return tracking.uri


def apply_quiet_settings() -> None:
    """Set no telemetry, short time-outs and no chatter about migrations. What the user has exported stays."""
    for name, value in QUIET_SETTINGS.items():
        os.environ.setdefault(name, value)
    for noisy in ("alembic", "mlflow.store.db.utils", "mlflow.tracking"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def connect(tracking: TrackingSpec, output_dir: Path) -> MlflowClient:
    """A client for the store; creates the SQLite file when there is none.

    Raises:
        UsageError: the tracking server does not answer within seconds.
    """
    apply_quiet_settings()
    uri = tracking_uri(tracking, output_dir)
    if tracking.kind == "server":
        require_server(uri)
    else:
        database_path(output_dir).parent.mkdir(parents=True, exist_ok=True)
    from mlflow import MlflowClient  # costs 2 s; only those who need the store pay

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def require_server(uri: str) -> None:
    """Ask whether a server answers before MLflow does, which would try again for long.

    Any HTTP answer will do, because a proxy in front may refuse `/health` and still pass the API on. The user and the
    password that the address may hold are left out: urllib takes none there, and messages must not show them.

    Raises:
        UsageError: nothing answers.
    """
    if not uri.startswith(("http://", "https://")):
        return
    address = without_credentials(uri)
    try:
        with urllib.request.urlopen(address.rstrip("/") + "/health", timeout=REACH_SECONDS):
            return
    except urllib.error.HTTPError as answer:
        answer.close()
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise UsageError(
            f"tracking.uri = {address!r}: no MLflow server answers ({reason})",
            "Start it or correct the address, then import again with the report command: the sweep's folders keep"
            " everything.",
        ) from None


def experiment_id(client: MlflowClient, tracking: TrackingSpec, output_dir: Path) -> str:
    """The id of the MLflow experiment, created when it does not exist.

    Raises:
        UsageError: an experiment of that name was deleted, which MLflow neither shows nor lets anyone recreate.
    """
    found = client.get_experiment_by_name(tracking.experiment)
    if found is None:
        location = artifact_dir(output_dir).as_uri() if tracking.kind == "sqlite" else None
        kind = {"mlflow.experimentKind": "custom_model_development"}  # opens on the table of runs
        return str(client.create_experiment(tracking.experiment, artifact_location=location, tags=kind))
    if found.lifecycle_stage == "deleted":
        raise UsageError(
            f"tracking.experiment = {tracking.experiment!r} is deleted in MLflow",
            f"Bring it back with `mlflow experiments restore --experiment-id {found.experiment_id}`, or choose another"
            " name with tracking.experiment=NAME.",
        )
    return str(found.experiment_id)
