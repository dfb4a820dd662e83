"""The last report of a sweep, kept so that the next one, where nothing is new, neither reads the sweep nor writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from results.report.sections.provenance import commands_of
from results.report.sections.published import chosen_figures
from results.sight import Sight, sight_of
from results.table import Table
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from train_core.trial_folder import TrialFolder
from train_core.whole_files import stored_values

_ANY = TrialFolder("any")
SHOWN_TOO = (_ANY.slurm_job.name, _ANY.timeline.name)
"""What a report tells of a trial beside how it stands."""


class Said(NamedTuple):
    """What a report says in a terminal.

    Attributes:
        table: its first rows, of `num_rows`.
    """

    table: Table
    num_rows: int
    paragraphs: tuple[str, ...]


SAID = TypeAdapter(Said)


@dataclass(frozen=True)
class LastReport:
    """The facts that are known before a sweep is read."""

    memory: Path
    sight: Sight
    files: tuple[Path, ...]

    @classmethod
    def of(cls, sweep: Sweep, words: Sequence[str]) -> LastReport:
        """Look at a sweep; the report says the words by which commands find it."""
        folder, record = sweep.folder, sweep.record
        facts = (words, list(commands_of(folder)), chosen_figures(record.spec.published), record.overrides)
        files = (folder.report("html"), folder.report("md"), folder.report("csv"))
        return cls(folder.reported, sight_of(sweep, folder.reported, *facts, further=SHOWN_TOO), files)

    def said(self) -> Said | None:
        """What it said, where the files of the sweep and of the report are as they were; else None."""
        kept = stored_values(self.memory)
        if kept.get("files") != self.sight.digest or kept.get("written") != self._written():
            return None
        try:
            return SAID.validate_python(kept.get("said"))
        except ValidationError:
            return None

    def remember(self, readings: Sequence[TrialReading], said: Said) -> None:
        self.sight.keep(
            self.memory, readings, {"written": self._written(), "said": SAID.dump_python(said, mode="json")}
        )

    def _written(self) -> list[list[int]] | None:
        """How the files of the report look; None where one is not there."""
        try:
            return [[seen.st_size, seen.st_mtime_ns] for seen in (path.stat() for path in self.files)]
        except OSError:
            return None
