"""The last report of a sweep, kept so that the next one, where nothing is new, neither reads the sweep nor writes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from results.render.sight import Sight, sight_of
from results.render.table import Table
from results.report.sections.provenance import commands_of
from results.report.sections.published import chosen_figures
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import sight
from train_core.trial.atomic import stored_values
from train_core.trial.folder import TrialFolder

SHOWN_TOO = (TrialFolder("any").timeline.name,)
"""What a report tells of a trial beside how it stands, and the record of its job."""


class Said(NamedTuple):
    """What a report says in a terminal.

    Attributes:
        table: its first rows, of `num_rows`.
        awaited: the jobs whose records may still come, and when the trial of each ended.
    """

    table: Table
    num_rows: int
    paragraphs: tuple[str, ...]
    awaited: Mapping[str, float]


SAID = TypeAdapter(Said)


@dataclass(frozen=True)
class LastReport:
    """The facts that are known before a sweep is read."""

    sweep: Sweep
    sight: Sight

    @classmethod
    def of(cls, sweep: Sweep, words: Sequence[str]) -> LastReport:
        """Look at a sweep; the report says the words by which commands find it."""
        folder, record = sweep.folder, sweep.record
        facts = (words, list(commands_of(folder)), chosen_figures(record.spec.published), record.overrides)
        return cls(sweep, sight_of(sweep, folder.reported, *facts, further=SHOWN_TOO))

    def said(self) -> Said | None:
        """What it said, where the files of the sweep and of the report are as they were; else None."""
        kept = stored_values(self.sweep.folder.reported)
        if kept.get("files") != self.sight.digest or kept.get("written") != self._written():
            return None
        if kept.get("job_records") != self.job_records():
            return None
        try:
            return SAID.validate_python(kept.get("said"))
        except ValidationError:
            return None

    def job_records(self) -> str:
        """A mark of the records of jobs. The command writes them itself, after its look at the other files.

        Each is written once for a job, so that it is never too young.
        """
        seen = [sight(self.sweep.folder_of(trial).slurm_job) for trial in self.sweep.record.trials]
        return hashlib.sha256(repr(seen).encode()).hexdigest()

    def remember(self, readings: Sequence[TrialReading], job_records: str, said: Said) -> None:
        """Keep what was said, and of which `job_records`: those before the report was written."""
        made = {"written": self._written(), "job_records": job_records, "said": SAID.dump_python(said, mode="json")}
        self.sight.keep(self.sweep.folder.reported, readings, made)

    def _written(self) -> list[list[int]] | None:
        """How the files of the report look; None where one is not there."""
        try:
            files = [self.sweep.folder.report(end).stat() for end in ("html", "md", "csv")]
            return [[seen.st_size, seen.st_mtime_ns] for seen in files]
        except OSError:
            return None
