"""What a refused command leaves behind: nothing, as long as nobody has taken up what it asked for."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from conf.errors import TrisweepError, UsageError
from launcher.provenance import CONFIGURATION, FOLDER
from sweeps.folder.journal import JournalReplacedError, noting_own_entries
from sweeps.trial import SweepFolder
from train_core.trial_folder import TrialFolder


class PartlyRefused(UsageError):
    """A part of what was asked for was done, so that the rest of the command stands too."""


@contextlib.contextmanager
def unchanged_if_refused(folder: SweepFolder) -> Iterator[None]:
    """Put the sweep's files back where the block ends in a refusal. Whoever calls holds the folder's lock.

    Trials have folders of their own, which whoever submits them puts back: see `FilesBefore`.
    """
    provenance, since = folder.path / FOLDER, time.time()
    known = {path: _inside(path) for path in (provenance, folder.code, folder.submitit, folder.controller.path)}
    before = FilesBefore([folder.record, folder.private, provenance / CONFIGURATION])
    with noting_own_entries(folder.journal) as own:
        try:
            yield
        except (PartlyRefused, JournalReplacedError):
            raise
        except TrisweepError:
            if not own.tell_of_jobs(since):
                own.take_back()
                before.put_back()
                for path, names in known.items():
                    _keep_alone(path, names)
            raise


def _inside(folder: Path) -> set[Path] | None:
    return set(folder.iterdir()) if folder.is_dir() else None


def _keep_alone(folder: Path, known: set[Path] | None) -> None:
    """Remove what is new in a folder; all of it where it was not there."""
    if known is None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in (_inside(folder) or set()) - known:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


class FilesBefore:
    """The content and the time of files, as they were."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._files = {path: (path.read_bytes(), path.stat()) if path.is_file() else None for path in paths}
        self._new_folder: Path | None = None

    @classmethod
    def of_trial(cls, folder: TrialFolder) -> FilesBefore:
        """All that stands in a trial's folder beside its logs and what it has saved; a new folder goes again."""
        if not folder.path.exists():
            before = cls([])
            before._new_folder = folder.path
            return before
        places = (folder.path, folder.failures, folder.waits)
        found = {path for place in places for path in place.glob("*") if path.is_file()}
        return cls(found | {folder.trial, folder.submission, folder.attempts})

    def put_back(self) -> None:
        if self._new_folder is not None:
            shutil.rmtree(self._new_folder, ignore_errors=True)
            return
        for path, before in self._files.items():
            if before is None:
                path.unlink(missing_ok=True)
            elif not path.is_file() or path.read_bytes() != before[0]:
                path.write_bytes(before[0])
                os.utime(path, ns=(before[1].st_atime_ns, before[1].st_mtime_ns))
