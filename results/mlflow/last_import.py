"""What the last import of a sweep left in the SQLite store, so that one with nothing new neither reads nor opens it.

It is kept beside the sweep in `imported.json`: the sweep's runs in the store, how the store's file looked afterwards,
and what a glance at the sweep's files saw. The runs serve only while nobody else has written the store, and the sweep
is not read only while its files and the code are the same too. Where the memory is damaged, lost, or of another store,
MLflow is asked.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from results.mlflow.run_content import FORMAT, SWEEP, report_digest
from results.render.sight import Sight, sight_of
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from train_core.trial.atomic import stored_values, write_atomically

HEADER_BYTES = 100
"""The header of an SQLite file counts its transactions. Source: sqlite.org/fileformat2.html, file change counter."""


@dataclass(frozen=True)
class StoredRun:
    """One run of the store.

    Attributes:
        digest: written last, so that the run holds everything that it stands for; None where an import died before.
        parent: the id of the run below which MLflow shows it.
    """

    run_id: str
    experiment_id: str
    digest: str | None
    parent: str | None


RUNS = TypeAdapter(dict[str, StoredRun])


@dataclass(frozen=True)
class LastImport:
    """The facts that are known before a sweep is read.

    Attributes:
        memory: the file in which it is kept.
        sight: of the sweep's files, before they are read.
        place: the database, the experiment and the sweep's name in it.
    """

    memory: Path
    sight: Sight
    place: tuple[Path, str, str]

    @classmethod
    def of(cls, sweep: Sweep, database: Path, experiment: str, sweep_id: str) -> LastImport:
        memory = sweep.folder.imported
        sight = sight_of(sweep, memory, FORMAT, experiment, report_digest(sweep.folder))
        return cls(memory, sight, (database, experiment, sweep_id))

    @cached_property
    def _kept(self) -> dict[str, Any]:
        return stored_values(self.memory)  # once, as thousands of runs are in it

    def runs(self) -> dict[str, StoredRun] | None:
        """The runs of the sweep in the store, by their keys; None where somebody else may have written it since."""
        try:
            return RUNS.validate_python(self._kept["runs"]) if self._kept["store"] == self._store() else None
        except (KeyError, OSError, ValidationError):
            return None

    @property
    def was_elsewhere(self) -> bool:
        """True if the sweep was last written into another store, or into this one before it was moved or copied."""
        store = self._kept.get("store")
        return isinstance(store, list) and store[:1] != [str(self.place[0])]

    def parent_if_all_stored(self) -> StoredRun | None:
        """The sweep's run, where nothing has changed since the last import, neither on disk nor in the store."""
        is_same = self._kept.get("files") == self.sight.digest
        return (self.runs() or {}).get(SWEEP) if is_same else None

    def remember(self, readings: Sequence[TrialReading], runs: Mapping[str, StoredRun]) -> None:
        """Keep the runs, and what was seen of the sweep unless a job may still change a trial."""
        files = self.sight.digest if self.sight.lasts(readings) else None
        with contextlib.suppress(OSError):  # the next one asks MLflow, as this one did
            kept = {"files": files, "store": self._store(), "runs": {key: asdict(run) for key, run in runs.items()}}
            write_atomically(self.memory, json.dumps(kept) + "\n", durable=False)

    def _store(self) -> list[object]:
        """A mark that is another one after every write into the store, and in a store that was moved or copied."""
        database, *names = self.place
        seen = database.stat()
        with database.open("rb") as file:
            header = file.read(HEADER_BYTES).hex()
        return [str(database), *names, seen.st_ino, seen.st_size, seen.st_mtime_ns, header]
