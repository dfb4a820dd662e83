"""The lock of a sweep's folder: waiting for it, and file systems that have none."""

from __future__ import annotations

import errno
import fcntl
import threading
import time
from pathlib import Path

import pytest

from conf.errors import ConfigError, UsageError
from launcher import folder_lock
from launcher.folder_lock import holder, lock_folder, require_writable, wait_until_free
from sweeps.folder.journal import Journal, Paused
from sweeps.trial import SweepFolder
from tests.messages import refused


def test_a_file_system_without_locks_is_refused_with_its_remedy_and_asked_without_a_traceback(
    folder: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with refused(ConfigError, "output_dir"):  # noqa: SIM117
        with lock_folder(folder):
            pass
    assert holder(folder) is None
    journal = Journal(folder.journal)
    journal.append(Paused())
    assert [type(entry) for entry in journal.read_new()] == [Paused]


@pytest.mark.parametrize("where", ["/proc/x", "/proc/x/y", "file", "file/below"])
def test_on_paper_a_folder_is_refused_as_it_is_when_it_is_to_be_written(where: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = SweepFolder(tmp_path / where / "sweep-local")
    with refused(ConfigError, "output_dir"):
        require_writable(folder.path)
    with refused(ConfigError, "output_dir"), lock_folder(folder):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_on_paper_nothing_is_left_in_a_folder_that_can_be_written(tmp_path: Path) -> None:
    require_writable(tmp_path / "new" / "sweep-local")
    assert list(tmp_path.iterdir()) == []


def test_two_commands_at_once_both_find_that_the_folder_can_be_written(
    folder: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_beside_another(path: Path, text: str) -> None:
        path.write_text(text)
        path.unlink()  # the other command's, which has written the same file

    monkeypatch.setattr(folder_lock, "write_atomically", write_beside_another)
    with lock_folder(folder):
        assert holder(folder) is not None


def test_a_holder_that_has_not_written_its_id_yet_is_another_process(folder: SweepFolder) -> None:
    folder.path.mkdir(parents=True)
    with folder.lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with refused(UsageError), lock_folder(folder):
            pass


def test_whoever_waits_for_a_folder_goes_on_once_it_is_free_and_gives_up_in_time(folder: SweepFolder) -> None:
    taken, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock_folder(folder):
            taken.set()
            let_go.wait(30)

    other = threading.Thread(target=hold)
    other.start()
    assert taken.wait(30)
    wait_until_free(folder, 0.0)
    assert holder(folder) is not None
    threading.Timer(0.5, let_go.set).start()
    started = time.monotonic()
    wait_until_free(folder, 30.0)
    assert holder(folder) is None
    assert time.monotonic() - started < 30.0
    other.join()


@pytest.mark.parametrize(
    "number",
    [
        errno.EDQUOT,
        errno.EACCES,
        errno.EROFS,
    ],
)
def test_a_folder_that_takes_nothing_says_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(path: Path, text: str) -> None:
        raise OSError(number, "no", str(path))

    monkeypatch.setattr(folder_lock, "write_atomically", refuse)
    monkeypatch.setattr(folder_lock, "owner_of", lambda path: "user 4321")
    with refused(ConfigError, "output_dir"), lock_folder(SweepFolder(tmp_path / "test-local")):
        pass
