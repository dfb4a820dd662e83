"""Logs that grow."""

from __future__ import annotations

from pathlib import Path

from train_core.log_files import GrowingFile


def test_a_growing_file_is_read_on_and_a_new_one_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    growing = GrowingFile(path)
    assert list(growing.news()) == []
    path.write_bytes("one\ngrün".encode()[:-2])  # in the middle of a letter
    assert "".join(growing.news()) == "one\ngr"
    with path.open("ab") as file:
        file.write("grün".encode()[-2:])
    assert "".join(growing.news()) == "ün"
    path.write_text("new")
    assert "".join(growing.news()) == "new"
