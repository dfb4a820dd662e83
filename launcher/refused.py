"""What a refused command leaves behind: nothing, as long as nobody has taken up what it asked for."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from stat import S_IMODE

from conf.errors import TrisweepError, UsageError
from launcher.provenance import CONFIGURATION, FOLDER
from sweeps.folder.journal import JournalReplacedError, noting_own_entries
from sweeps.trial import SweepFolder
from train_core.trial.folder import JobFolder, TrialFolder

_FURTHER: ContextVar[list[FilesBefore]] = ContextVar("further")


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
    since, further = time.time(), list[FilesBefore]()
    token = _FURTHER.set(further)
    with noting_own_entries(folder.journal) as own:
        try:
            yield
        except (PartlyRefused, JournalReplacedError):
            raise
        except TrisweepError:
            if not own.tell_of_jobs(since):
                own.take_back()
                for each in (*further, *([before] if before else [])):
                    each.put_back()
            raise
        finally:
            _FURTHER.reset(token)


def put_back_too(trials: Sequence[TrialFolder]) -> None:
    """Have trials' folders put back as well where the command in whose block this is called is refused."""
    if (further := _FURTHER.get(None)) is not None:
        further.append(FilesBefore.of_trials(trials))


@contextlib.contextmanager
def put_back_if_refused(before: FilesBefore) -> Iterator[None]:
    """Put files back where the block ends in a refusal. Whoever calls keeps others from writing there."""
    try:
        yield
    except PartlyRefused:
        raise
    except TrisweepError:
        before.put_back()
        raise


class FilesBefore:
    """The content and the time of files, and what folders hold, as they were."""

    def __init__(self, files: Iterable[Path], folders: Sequence[Path] = ()) -> None:
        self._files = {path: (path.read_bytes(), path.stat()) if path.is_file() else None for path in files}
        self._folders = {path: _inside(path) if path.is_dir() else None for path in folders}
        self._missing = [path for folder in folders for path in folder.parents if not path.exists()]

    @classmethod
    def of_job(cls, folder: JobFolder, *further: Path) -> FilesBefore:
        """The files of a job that no sweep submits, its code and its scripts."""
        files = [path for path in folder.path.glob("*") if path.is_file()]
        return cls([*files, *folder.failures.glob("*"), *further], [folder.path, folder.code, folder.submitit])

    @classmethod
    def of_trials(cls, trials: Sequence[TrialFolder]) -> FilesBefore:
        """All that stands in trials' folders beside their logs and what they have saved; a new folder goes again."""
        found = set[Path]()
        for each in (trial for trial in trials if trial.path.exists()):
            places = (each.path, each.failures, each.waits)
            found |= {path for place in places for path in place.glob("*") if path.is_file()}
            found |= {each.trial, each.submission, each.attempts, each.metrics, each.heartbeat}
        return cls(found, [each.path for each in trials if not each.path.exists()])

    def put_back(self) -> None:
        for path, before in self._files.items():
            if before is None:
                path.unlink(missing_ok=True)
                continue
            content, status = before
            if not path.is_file() or path.read_bytes() != content:
                path.write_bytes(content)
            path.chmod(S_IMODE(status.st_mode))
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        for folder, known in self._folders.items():
            if known is None:
                shutil.rmtree(folder, ignore_errors=True)
                continue
            for path in _inside(folder) - known:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for parent in self._missing:
            with contextlib.suppress(OSError):  # others work there
                parent.rmdir()


def _inside(folder: Path) -> set[Path]:
    return set(folder.iterdir()) if folder.is_dir() else set()
