"""Files that are replaced or grow whole."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.steps import STEP
from train_core.job.failures import failure_of, without_numbers
from train_core.trial import atomic
from train_core.trial.atomic import (
    append_whole,
    is_full,
    keep_room,
    replacing,
    stored_values,
    write_atomically,
    write_in_room,
)
from train_core.trial.folder import TrialFolder, result_in
from train_core.trial.measurement import Fault, Measurement, Outcome


def test_a_link_stays_and_the_file_behind_it_is_replaced(tmp_path: Path) -> None:
    behind, link = tmp_path / "disk" / "table.csv", tmp_path / "table.csv"
    write_atomically(behind, "old")
    link.symlink_to(behind)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert behind.read_text() == "new"
    assert list(behind.parent.iterdir()) == [behind]


def test_a_link_to_nothing_yet_leads_to_the_new_file(tmp_path: Path) -> None:
    link = tmp_path / "table.csv"
    link.symlink_to("later.csv")
    write_atomically(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "later.csv").read_text() == "new"


def test_a_link_to_itself_becomes_a_file(tmp_path: Path) -> None:
    link = tmp_path / "table.csv"
    link.symlink_to(link)
    write_atomically(link, "new")
    assert link.read_text() == "new"


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o444])
def test_a_file_keeps_who_may_read_and_write_it(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "table.csv"
    path.write_text("old")
    path.chmod(mode)
    write_atomically(path, "new")
    assert path.stat().st_mode & 0o7777 == mode
    assert path.read_text() == "new"


def test_a_new_file_is_private_to_the_user(tmp_path: Path) -> None:
    write_atomically(tmp_path / "new.csv", "new")
    assert (tmp_path / "new.csv").stat().st_mode & 0o7777 == 0o600


def test_a_file_that_came_first_stays_where_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "measurement.json"
    with replacing(path, keep_existing=True) as file:
        path.write_text("first")
        file.write(b"second")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_line_that_fits_only_in_part_leaves_nothing_of_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_whole(path, "whole\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(OSError, match=f"File too large: '{path}'"):
            append_whole(path, "too long for it\n")
        with pytest.raises(OSError, match=f"File too large: '{path}'"):
            write_atomically(path, "too long for it\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "whole\n"


def test_without_hard_links_what_is_there_stays_and_what_is_not_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    path = tmp_path / "measurement.json"
    for text in ("first", "second"):
        with replacing(path, keep_existing=True) as file:
            file.write(text.encode())
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [None, b"", b'{"a": 1', b"[1]", b"\xff", b"[" * 100_000])
def test_a_file_that_is_not_there_or_damaged_holds_no_values(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "state.json").write_bytes(content)
    assert stored_values(tmp_path / "state.json") == {}


def test_values_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_atomically(tmp_path / "state.json", '{"step": 3}')
    assert stored_values(tmp_path / "state.json") == {"step": 3}


@pytest.fixture(params=["size=2m", "nr_inodes=20"], ids=["bytes", "inodes"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", request.param, "none", disk]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a disk")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def _fill(disk: Path) -> list[Path]:
    """Write until the disk takes no byte or no file more."""
    written = list[Path]()
    try:
        while True:
            written.append(disk / f"other-{len(written)}")
            written[-1].write_bytes(bytes(2**17))
    except OSError:
        return written


def test_a_disk_without_bytes_is_full_and_one_without_inodes_takes_more_of_a_log(small_disk: Path) -> None:
    assert not is_full(small_disk)
    _fill(small_disk)
    assert is_full(small_disk) is (os.statvfs(small_disk).f_bavail == 0)


def test_a_result_is_written_to_a_disk_that_has_filled_up_since_its_room_was_kept(small_disk: Path) -> None:
    path = small_disk / "measurement.json"
    keep_room(path)
    _fill(small_disk)
    write_in_room(path, "5 TFLOPS" * 1000)
    assert path.read_text() == "5 TFLOPS" * 1000
    assert path.stat().st_mode & 0o7777 == 0o600
    assert not [each for each in small_disk.iterdir() if "measurement" in each.name and each != path]


def test_a_result_for_which_no_room_was_kept_waits_until_the_disk_is_emptied(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(atomic, "PAUSE_SECONDS", 0.01)
    path, others = small_disk / "measurement.json", _fill(small_disk)
    keep_room(path)  # finds none

    def empty_disk() -> None:
        for each in others:
            each.unlink(missing_ok=True)

    empty = threading.Timer(0.2, empty_disk)
    empty.start()
    write_in_room(path, "5 TFLOPS")
    empty.join()
    assert path.read_text() == "5 TFLOPS"
    said = f"{path} cannot be written (No space left on device): tried again for 10 minutes"
    assert capsys.readouterr().out.count(said) == 1


def test_a_disk_that_stays_full_is_an_error_after_a_while(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(atomic, "PATIENCE_SECONDS", 0.1)
    _fill(small_disk)
    with pytest.raises(OSError, match="No space left"):
        write_in_room(small_disk / "measurement.json", "5 TFLOPS")


def test_another_error_than_a_full_disk_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "measurement.json").mkdir()
    with pytest.raises(IsADirectoryError):
        write_in_room(tmp_path / "measurement.json", "5 TFLOPS")


def test_a_trial_that_ends_on_a_full_disk_leaves_its_measurement_and_all_of_its_steps(small_disk: Path) -> None:
    trial = TrialFolder(small_disk / "trial")
    trial.path.mkdir()
    trial.keep_room()
    trial.append_metrics(STEP)
    _fill(small_disk)
    for step in range(2, 100):
        trial.append_metrics(STEP.model_copy(update={"step": step}))
    measured = without_numbers("sha", Outcome.COMPLETED, "", 0.0)
    trial.write_result(measured)
    assert trial.read_measurement() == measured
    assert [each.step for each in trial.read_metrics()] == list(range(1, 100))


def test_a_measurement_does_not_wait_for_more_steps_than_room_was_kept_for(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job may be ended meanwhile, and the steps alone are lost then."""
    trial = _trial_on_a_full_disk(small_disk)
    for step in range(1, 1000):
        trial.append_metrics(STEP.model_copy(update={"step": step}))
    seen = list[Measurement | None]()

    def look(seconds: float) -> None:
        seen.append(trial.read_measurement())
        _empty(small_disk)

    monkeypatch.setattr(time, "sleep", look)
    measured = without_numbers("sha", Outcome.COMPLETED, "", 0.0)
    trial.write_result(measured)
    assert all(each == measured for each in seen)
    assert len(trial.read_metrics()) == 999


def test_a_measurement_that_finds_no_room_is_printed_and_read_there(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(atomic, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(atomic, "PATIENCE_SECONDS", 0.05)
    trial = _trial_on_a_full_disk(small_disk, keeps_room=False)
    measured = without_numbers("sha", Outcome.COMPLETED, "", 0.0)
    with pytest.raises(OSError, match="No space left"):
        trial.write_result(measured)
    output = tmp_path / "0_log.out"
    output.write_text(f"step 1\n{capsys.readouterr().out}\ntrisweep measured: {{torn")
    assert result_in(output, "sha") == measured
    assert result_in(output, "of another experiment") is None
    assert result_in(tmp_path / "none", "sha") is None


def test_a_rank_that_fails_on_a_full_disk_leaves_its_word_in_the_room_of_the_measurement(small_disk: Path) -> None:
    trial = _trial_on_a_full_disk(small_disk)
    trial.write_failure(failure_of(0, OSError(errno.ENOSPC, "No space left on device", "/scratch/x")))
    (failure,) = trial.read_failures()
    assert failure.fault is Fault.DISK


def _trial_on_a_full_disk(disk: Path, *, keeps_room: bool = True) -> TrialFolder:
    trial = TrialFolder(disk / "trial")
    trial.path.mkdir()
    if keeps_room:
        trial.keep_room()
    _fill(disk)
    return trial


def _empty(disk: Path) -> None:
    for other in disk.glob("other-*"):
        other.unlink()
