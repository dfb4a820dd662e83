"""Whether a sweep is as it was when a report or an import was made of it, so that it need not be read again.

A file beside the sweep keeps what a glance at the sweep's files saw, the code that read them, and what came of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sweeps.reading import TrialReading
from sweeps.sweep import Sweep, glance_at, is_settled
from train_core.process.git_sha import ROOT
from train_core.trial.atomic import write_atomically

PACKAGES = ("conf", "costs", "train_core", "sweeps", "results")


class Sight(NamedTuple):
    """A sweep's files, and the code that reads them, as they were before.

    Attributes:
        is_sharp: every later change of these files can be told from the way they were.
    """

    digest: str
    is_sharp: bool

    def lasts(self, readings: Sequence[TrialReading]) -> bool:
        """True unless a job may still change a trial."""
        return self.is_sharp and all(map(is_settled, readings))

    def keep(self, memory: Path, readings: Sequence[TrialReading], made: Mapping[str, Any]) -> None:
        """Remember what was made of the sweep, if that lasts."""
        if self.lasts(readings):
            record = {"files": self.digest, **made}
            with contextlib.suppress(OSError):  # the next one reads the sweep, as this one did
                write_atomically(memory, json.dumps(record, indent=1) + "\n", durable=False)


def sight_of(sweep: Sweep, memory: Path, *facts: object, further: Sequence[str] = ()) -> Sight:
    """Look at a sweep.

    Args:
        facts: what else decides what is made of it.
        further: names in the folder of a trial beside those that decide how it stands.
    """
    taken_ns = 0
    with contextlib.suppress(OSError):  # of a folder that is not ours to write
        memory.touch(mode=0o600)
        taken_ns = memory.stat().st_mtime_ns  # now, by the clock of the file system
    glance = glance_at(sweep, further)
    whole = repr((facts, glance.summary, list(_code())))
    return Sight(hashlib.sha256(whole.encode()).hexdigest(), glance.is_sharp(taken_ns))


def _code() -> Iterator[tuple[str, int, int]]:
    """Yield a mark of every source file, as other code may make something else of the same readings."""
    for package in PACKAGES:
        for folder, inner, names in os.walk(ROOT / package):
            inner.sort()
            for name in sorted(names):
                if name.endswith((".py", ".yaml", ".csv", ".html", ".js", ".css")):
                    seen = Path(folder, name).stat()
                    yield name, seen.st_size, seen.st_mtime_ns
