"""The runs that the SQLite store holds. SQLite itself is asked, because MLflow takes three seconds to start.

Nothing is written there. Where the tables are not as expected, nothing is known, and the import asks MLflow.

The last import of a sweep is remembered, so that a sweep of thousands need not be read. It is kept beside the sweep in
`imported.json`: what a glance at the sweep's files saw, and which runs the store held afterwards. It serves only where
both are as they were, and the code is the same; where it is damaged, lost, or of another store, the sweep is read as if
nothing were remembered.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from results.mlflow.run_content import FORMAT, SWEEP, report_digest
from results.render.sight import Sight, sight_of
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from train_core.trial.atomic import stored_values

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


def _runs_of_points(database: Path, experiment: str, sweep_id: str) -> dict[str, StoredRun]:
    """The runs but for those of points that the sweep no longer has; none where the store cannot be asked."""
    runs = stored_runs(database, experiment, sweep_id) or {}
    return {key: run for key, run in runs.items() if run.digest != LEFT}


@dataclass(frozen=True)
class LastImport:
    """The facts that are known before a sweep is read.

    Attributes:
        memory: the file in which it is kept.
        sight: of the sweep's files, before they are read.
        database, experiment, sweep_id: where the store has the sweep's runs.
    """

    memory: Path
    sight: Sight
    database: Path
    experiment: str
    sweep_id: str

    @classmethod
    def of(cls, sweep: Sweep, database: Path, experiment: str, sweep_id: str) -> LastImport:
        memory = sweep.folder.imported
        sight = sight_of(sweep, memory, FORMAT, experiment, report_digest(sweep.folder))
        return cls(memory, sight, database, experiment, sweep_id)

    def parent_if_all_stored(self) -> StoredRun | None:
        """The sweep's run, where nothing has changed since the last import, neither on disk nor in the store."""
        record = stored_values(self.memory)
        if record.get("files") != self.sight.digest:
            return None
        stored = self._read_stored_runs()
        return stored.get(SWEEP) if record.get("runs") == _digest_of(stored) else None

    def remember(self, readings: Sequence[TrialReading], keys: Collection[str]) -> None:
        """Keep what was seen, after the store got all of it; nothing while a job may still change a trial."""
        stored = self._read_stored_runs()
        if stored.keys() == keys:
            self.sight.keep(self.memory, readings, {"runs": _digest_of(stored)})

    def _read_stored_runs(self) -> dict[str, StoredRun]:
        return _runs_of_points(self.database, self.experiment, self.sweep_id)


def _digest_of(stored: Mapping[str, StoredRun]) -> str:
    """Equal only for the same runs of one store with the same content, as the ids of runs are random."""
    whole = repr(sorted((key, *vars(run).values()) for key, run in stored.items()))
    return hashlib.sha256(whole.encode()).hexdigest()
