"""What the SQLite store holds already. SQLite itself is asked, because MLflow takes three seconds to start.

Nothing is written here. Where the tables are not as expected, nothing is known, and the import asks MLflow.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from results.mlflow.run_content import RunContent

SWEEP_ID, KEY, DIGEST = "trisweep.sweep_id", "trisweep.key", "trisweep.digest"
"""Tags of a run: which sweep or training it is of, which part of it, and what it holds."""

ATTEMPT, LAST_STEP, PARENT = "trisweep.attempt", "trisweep.last_step", "mlflow.parentRunId"
LEFT = "left"
"""The digest of a run that measured something, and whose point the sweep no longer has."""

QUERY = """
SELECT key.value, digest.value, runs.run_uuid, runs.experiment_id FROM runs
JOIN experiments USING (experiment_id)
JOIN tags AS sweep ON sweep.run_uuid = runs.run_uuid AND sweep.key = ? AND sweep.value = ?
JOIN tags AS key ON key.run_uuid = runs.run_uuid AND key.key = ?
JOIN tags AS digest ON digest.run_uuid = runs.run_uuid AND digest.key = ?
WHERE runs.lifecycle_stage = 'active' AND experiments.lifecycle_stage = 'active' AND experiments.name = ?
"""


@dataclass(frozen=True)
class StoredRun:
    """One run. Its `digest` was written last, so the run holds everything that the digest stands for."""

    digest: str
    run_id: str
    experiment_id: str


def first_if_all_stored(
    contents: Sequence[RunContent], database: Path, experiment: str, sweep_id: str
) -> StoredRun | None:
    """The run of the first content, if the store holds every content as it is now; None where that is not known."""
    stored = _stored_runs(database, experiment, sweep_id)
    keys = {content.key for content in contents}
    if any(key not in keys and run.digest != LEFT for key, run in stored.items()):
        return None
    if all(content.key in stored and stored[content.key].digest == content.digest for content in contents):
        return stored[contents[0].key]
    return None


def _stored_runs(database: Path, experiment: str, sweep_id: str) -> dict[str, StoredRun]:
    # The tables are private to MLflow. They are opened read-only, and whatever looks strange leads to a real import.
    names = (SWEEP_ID, sweep_id, KEY, DIGEST, experiment)
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as store:
            return {key: StoredRun(digest, run, str(place)) for key, digest, run, place in store.execute(QUERY, names)}
    except sqlite3.Error:
        return {}
