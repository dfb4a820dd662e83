"""Steps as rows of a table: CSV, JSON lines, and what wandb and TensorBoard export."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from typing import Any

from conf.errors import ConfigError
from diagnose.readers.book import StepBook
from diagnose.readers.formats import QUANTITIES
from diagnose.readers.general import figure_of
from diagnose.readers.said import number, says
from diagnose.readers.text import KEY, at, lines_of
from diagnose.runs import SaidBy, UserRun

STEP_NAMES = (
    *("step", "_step", "global_step", "iteration", "iter", "current_steps", "global_steps", "train_step", "num_steps"),
    *("trainer/global_step", "train/global_step", "training/global_step", "steps", "batch"),
)
OF_RECORDS: Mapping[str, tuple[str, float]] = {
    **dict.fromkeys(("elapsed_time", "_runtime", "_timestamp", "wall time", "wall_time"), ("elapsed", 1.0)),
    "time": ("unitless", 1.0),
    "train_steps_per_second": ("batches", 1.0),
}


def record_of(content: Mapping[str, Any]) -> tuple[int | None, dict[str, float]]:
    """The step that a row tells of, None where it has no number, and its figures."""
    step, found = None, dict[str, float]()
    for name, said in content.items():
        key = str(name).strip().lower()
        value = _value(said)
        if value is None or value != value:
            continue
        if key in STEP_NAMES and step is None and value == int(value) and value >= 0:
            step = int(value)
            continue
        last = key.rpartition("/")[2]
        known = OF_RECORDS.get(key) or OF_RECORDS.get(last) or figure_of(key) or figure_of(last)
        known = known or QUANTITIES.get(key) or QUANTITIES.get(last)
        if known is not None and value > 0:
            found.setdefault(known[0], value * known[1])
    return step, found


def _value(said: object) -> float | None:
    """The number of a cell, also of a time such as 1:02:03."""
    if isinstance(said, bool) or not isinstance(said, int | float | str):
        return None
    parts = said.split(":") if isinstance(said, str) else []
    if len(parts) in (2, 3) and all(part.strip().isdigit() for part in parts):
        return float(sum(int(part) * 60**place for place, part in enumerate(reversed(parts))))
    return number(str(said).replace(",", "") if isinstance(said, str) and said.count(",") else str(said))


OF_DEVICES = {"index": "gpu_index", "name": "device_name"} | {
    **dict.fromkeys(("power.limit [W]", "power.limit"), "device_power_limit"),
    "memory.total [MiB]": "device_memory_mib",
}
"""Columns of `nvidia-smi --query-gpu=... --format=csv`."""


def read_table(run: UserRun, book: StepBook, source: str) -> None:
    """Take down the rows of a CSV file: of steps, or of devices.

    Raises:
        ConfigError: it cannot be read, or has no column that tells of steps.
    """
    rows = _rows(source)
    header = next(rows, ([], 0))[0]
    for number_of_row, (cells, line) in enumerate(rows, 1):
        step, found = record_of(dict(zip(header, cells, strict=False)))
        if found:
            book.add(number_of_row if step is None else step, found, at(source, line, ",".join(cells)), "", "")
        for name, cell in zip(header, cells, strict=False) if "name" in header and not found else ():
            if name in OF_DEVICES:
                value = cell.removesuffix(" MiB").removesuffix(" W").removesuffix(".00")
                says(run, OF_DEVICES[name], value, SaidBy.RESOLVED, at(source, line, ",".join(cells)))
    if not book.steps and "device_name" not in run.settings:
        problem = f"has no column of steps that is known ({', '.join(header)[:150]})"
        raise ConfigError(KEY, source, problem, "Name its columns as in step,step_time,tokens_per_second.")


def _rows(source: str) -> Iterator[tuple[list[str], int]]:
    for line, text in lines_of(source):
        for cells in csv.reader([text]):
            yield [cell.strip() for cell in cells], line
