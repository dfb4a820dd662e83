"""What a refused command leaves behind: nothing, as long as nobody has taken up what it asked for."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from conf.errors import TrisweepError, UsageError
from launcher.provenance import CONFIGURATION, FOLDER
from sweeps.folder.journal import JournalReplacedError, noting_own_entries
from sweeps.trial import SweepFolder
from train_core.trial_folder import TrialFolder


class PartlyRefused(UsageError):
    """A part of what was asked for was done, so that the rest of the command stands too."""


def unchanged_if_refused(folder: SweepFolder) -> contextlib.AbstractContextManager[None]:
    """Put the sweep's files back where the block ends in a refusal. Whoever calls holds the folder's lock.

    Trials have folders of their own, which whoever submits them puts back: see `FilesBefore`.
    """
    provenance = folder.path / FOLDER
    files = [folder.record, folder.private, provenance / CONFIGURATION]
    folders = [provenance, folder.code, folder.submitit, folder.controller.path]
    return taken_back_if_refused(folder, FilesBefore(files, folders))


@contextlib.contextmanager
def taken_back_if_refused(folder: SweepFolder, before: FilesBefore | None = None) -> Iterator[None]:
    """Take back what the block has told the journal where it ends in a refusal before any job was submitted."""
    since = time.time()
    with noting_own_entries(folder.journal) as own:
        try:
            yield
        except (PartlyRefused, JournalReplacedError):
            raise
        except TrisweepError:
            if not own.tell_of_jobs(since):
                own.take_back()
                if before is not None:
                    before.put_back()
            raise


class FilesBefore:
    """The content and the time of files, and what folders hold, as they were."""

    def __init__(self, files: Iterable[Path], folders: Iterable[Path] = ()) -> None:
        self._files = {path: (path.read_bytes(), path.stat()) if path.is_file() else None for path in files}
        self._folders = {path: _inside(path) if path.is_dir() else None for path in folders}

    @classmethod
    def of_trials(cls, trials: Sequence[TrialFolder]) -> FilesBefore:
        """All that stands in trials' folders beside their logs and what they have saved; a new folder goes again."""
        found = set[Path]()
        for each in (trial for trial in trials if trial.path.exists()):
            places = (each.path, each.failures, each.waits)
            found |= {path for place in places for path in place.glob("*") if path.is_file()}
            found |= {each.trial, each.submission, each.attempts}
        return cls(found, [each.path for each in trials if not each.path.exists()])

    def put_back(self) -> None:
        for path, before in self._files.items():
            if before is None:
                path.unlink(missing_ok=True)
            elif not path.is_file() or path.read_bytes() != before[0]:
                path.write_bytes(before[0])
                os.utime(path, ns=(before[1].st_atime_ns, before[1].st_mtime_ns))
        for folder, known in self._folders.items():
            if known is None:
                shutil.rmtree(folder, ignore_errors=True)
                continue
            for path in _inside(folder) - known:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _inside(folder: Path) -> set[Path]:
    return set(folder.iterdir()) if folder.is_dir() else set()
