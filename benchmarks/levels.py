"""Groups of rows that are left out together: a table with its machines, a source, a trainer, a generation.

Errors have levels. Rows of one table err together, tables of one source do (its machine, its release, the hand that
tuned it), and sources that measured one generation of devices do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.measured_rows import MeasuredRow

TABLE, GENERATION = "table", "generation"
GENERATIONS = {  # what the name of a device begins with, and its generation
    "A100": "Ampere",
    "A800": "Ampere",
    "B200": "Blackwell",
    "B300": "Blackwell",
    "GB": "Blackwell",
    "GH": "Hopper",
    "H": "Hopper",
    "Intel": "Intel",
    "MI": "AMD",
    "V100": "Volta",
}


def generation_of(device: str) -> str:
    """The generation of a device by its name; a device that is not known is a generation of its own."""
    return next((generation for start, generation in GENERATIONS.items() if device.startswith(start)), device)


LEVELS: dict[str, Callable[[MeasuredRow], str]] = {
    TABLE: lambda row: row.table,
    "source": lambda row: row.source,
    "trainer": lambda row: row.run.implementation.name,
    GENERATION: lambda row: generation_of(row.run.setup.cluster.device.name),
}


def groups_left_out(rows: Sequence[MeasuredRow], level: str) -> Iterator[tuple[list[int], list[int]]]:
    """Indices of the rows of each group of a level, and of those that are kept; with a table go all of its machines."""
    names = [LEVELS[level](row) for row in rows]
    for name in dict.fromkeys(names):
        members = [index for index, of_row in enumerate(names) if of_row == name]
        machines = {rows[index].machine for index in members} if level == TABLE else set()
        kept = [index for index, row in enumerate(rows) if names[index] != name and row.machine not in machines]
        yield members, kept
