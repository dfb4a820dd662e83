"""The runs that the SQLite store holds. SQLite itself is asked, because MLflow takes three seconds to start.

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
SELECT key.value, runs.run_uuid, runs.experiment_id, digest.value, parent.value FROM runs
JOIN experiments USING (experiment_id)
JOIN tags AS sweep ON sweep.run_uuid = runs.run_uuid AND sweep.key = ? AND sweep.value = ?
JOIN tags AS key ON key.run_uuid = runs.run_uuid AND key.key = ?
LEFT JOIN tags AS digest ON digest.run_uuid = runs.run_uuid AND digest.key = ?
LEFT JOIN tags AS parent ON parent.run_uuid = runs.run_uuid AND parent.key = ?
WHERE runs.lifecycle_stage = 'active' AND experiments.lifecycle_stage = 'active' AND experiments.name = ?
"""


@dataclass(frozen=True)
class StoredRun:
    """One run.

    Attributes:
        digest: written last, so that the run holds everything that it stands for; None where an import died before.
        parent: the id of the run below which MLflow shows it.
    """

    run_id: str
    experiment_id: str
    digest: str | None
    parent: str | None


def first_if_all_stored(
    contents: Sequence[RunContent], database: Path, experiment: str, sweep_id: str
) -> StoredRun | None:
    """The run of the first content, if the store holds every content as it is now; None where that is not known."""
    stored = stored_runs(database, experiment, sweep_id) or {}
    keys = {content.key for content in contents}
    if any(key not in keys and run.digest != LEFT for key, run in stored.items()):
        return None
    if all(content.key in stored and stored[content.key].digest == content.digest for content in contents):
        return stored[contents[0].key]
    return None


def stored_runs(database: Path, experiment: str, sweep_id: str) -> dict[str, StoredRun] | None:
    """The runs of a sweep by their keys, deleted ones left out; None where the store cannot be asked."""
    # The tables are private to MLflow. They are opened read-only, and whatever looks strange leads to a real import.
    names = (SWEEP_ID, sweep_id, KEY, DIGEST, PARENT, experiment)
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as store:
            rows = store.execute(QUERY, names)
            return {key: StoredRun(run, str(place), digest, parent) for key, run, place, digest, parent in rows}
    except sqlite3.Error:
        return None
