"""Folders in which MLflow keeps runs: a file for each parameter and each metric."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from diagnose.readers.log import LogStart
from diagnose.readers.records import record_of
from diagnose.readers.said import number, says
from diagnose.readers.text import MOST_AT_ONCE, at
from diagnose.runs import SaidBy, UserRun

MOST_FILES, MOST_LINES = 5000, 500_000


def is_of_mlflow(folder: Path) -> bool:
    return (folder / "params").is_dir() or (folder / "metrics").is_dir()


def runs_in(folder: Path) -> list[LogStart]:
    """The run that a folder of MLflow holds, or each of an experiment's; empty where it is another folder."""
    folders = [folder] if is_of_mlflow(folder) else sorted(each for each in folder.iterdir() if is_of_mlflow(each))
    return [_start_of(each) for each in folders[:MOST_FILES]]


def _start_of(folder: Path) -> LogStart:
    start = LogStart(UserRun(folder.name))
    for path, lines in _files(folder / "params"):
        value = " ".join(lines)
        says(start.run, path.name, value, SaidBy.RESOLVED, at(str(path), 1, value))
    rows: dict[int, dict[str, object]] = {}
    places: dict[int, tuple[str, int, str]] = {}
    for path, lines in _files(folder / "metrics"):
        for count, line in enumerate(lines, 1):
            when, figure, step = (*map(number, line.split()), None, None, None)[:3]
            if when is not None and figure is not None and step is not None and step >= 0:
                row = rows.setdefault(int(step), {"_timestamp": when / 1e3})
                row[path.relative_to(folder / "metrics").as_posix()] = figure
                places.setdefault(int(step), (str(path), count, line))
    for step in sorted(rows):
        _, found = record_of(rows[step])
        start.book.averages |= "elapsed" in found
        start.book.add(step, found, at(*places[step]), "", "")
    return start


def _files(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    for path in sorted(folder.rglob("*"))[:MOST_FILES] if folder.is_dir() else ():
        if path.is_file() and path.stat().st_size <= 32 * MOST_AT_ONCE:
            yield path, path.read_text(encoding="utf-8", errors="replace").splitlines()[:MOST_LINES]
