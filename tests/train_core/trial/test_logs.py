"""Logs that grow."""

from __future__ import annotations

from pathlib import Path

from train_core.trial.logs import GrowingFile, last_lines


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


def test_the_end_of_a_log_holds_nothing_that_a_terminal_would_obey(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\x1b[2Kone\ttwo\r\n\x1b[31mred\x1b[0m bell\x07 null\x00\n")
    assert last_lines(path) == "one\ttwo\nred bell null"
