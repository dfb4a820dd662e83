"""Files that are replaced or grow whole."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest

from train_core.whole_files import append_whole, replacing, stored_values, write_atomically


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
