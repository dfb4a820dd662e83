"""Lines as a terminal shows them, whatever their length, their ends and who speaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.readers.text import MOST_AT_ONCE, lines_of, rank_of, without_speaker


@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        (b"a\nb\n", [(1, "a"), (2, "b")]),
        (b"a\r\nb", [(1, "a"), (2, "b")]),
        (b"1%\r2%\r3%\nend\n", [(1, "1%"), (1, "2%"), (1, "3%"), (2, "end")]),
        (b"\x1b[31mred\x1b[0m\n", [(1, "red")]),
        (b"\x1b]0;title\x07a\n", [(1, "a")]),
        (b"\xef\xbb\xbfa\n", [(1, "a")]),
        (b"a\xff\xfeb\n", [(1, "a\ufffd\ufffdb")]),
        (b"a\n\n\nb\n", [(1, "a"), (4, "b")]),
    ],
)
def test_a_line_is_what_is_shown(tmp_path: Path, raw: bytes, lines: list[tuple[int, str]]) -> None:
    path = tmp_path / "log"
    path.write_bytes(raw)
    assert list(lines_of(str(path))) == lines


def test_a_bar_without_an_end_of_line_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "log"
    count = 3 * MOST_AT_ONCE // 20
    path.write_bytes(b"".join(b"\r%18d" % index for index in range(count)) + b"\nlast\n")
    lines = list(lines_of(str(path)))
    assert [int(text) for _, text in lines[:-1]] == list(range(count))
    assert lines[-1] == (2, "last")


def test_lines_that_nobody_needs_count(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first\ndull\ndull\nlast\n")
    assert list(lines_of(str(path), lambda raw: raw == b"dull\n")) == [(1, "first"), (4, "last")]


PREFIXES = {
    "[default7]:": 7,
    "[rank3]: ": 3,
    "12: ": 12,
    "[rank0]:[titan] 2025-03-01 10:00:00,123 - root - INFO - ": 0,
    "[trainer2|0]:": 2,
    "(RayActor pid=1234, ip=10.0.0.1) ": None,
    "2025-03-01T10:00:00.123Z ": None,
    "[2024-05-01 10:00:00,001] [INFO] [config.py:996:print] ": None,
    "03/01/2025 10:00:00 [INFO|DP=0|PP=0|TP=0|node-1]: ": None,
    "node-17: [default1]:": None,
    "": None,
}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_prefix_is_taken_off_and_names_a_rank(prefix: str) -> None:
    line = f"{prefix}iteration 10/ 500 | x: 1"
    assert without_speaker(line).strip() == "iteration 10/ 500 | x: 1"
    assert rank_of(line) == PREFIXES[prefix]
