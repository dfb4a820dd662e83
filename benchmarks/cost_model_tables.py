"""The tables of constants in docs/cost-model.md, made from the cluster files and the trainers so that they stay true.

python -m benchmarks.cost_model_tables    writes them into the page, each between its pair of comments
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from benchmarks import marked_tables
from benchmarks.target import Target
from conf.compose.load import cluster_named
from conf.folders import options
from conf.types.cluster_spec import ClusterSpec
from conf.units import GIBIBYTE
from costs.kernels import ALIGNMENTS, PROLOGUE, TILES
from costs.trainers import IMPLEMENTATIONS, Implementation
from train_core.trial.atomic import write_atomically

PAGE = Path(__file__).parents[1] / "docs" / "cost-model.md"
MEASURED_BY_ITS_USERS = "local"
"""The cluster that stands for whatever machine a user has; its numbers are no facts to print."""

FITTED = (
    "fitted at once with all other constants to the published rows of benchmarks/ (python -m benchmarks.fitting); none "
    "of them is a test of these values, and docs/validation.md has predictions without each table. "
)
ROWS = "Rows with this chip: "
ASSUMED = "an assumption for framework"
"""How the sources of most clusters begin, which the page says once."""

MICRO = 1e6
Described = TypeVar("Described", str, tuple[str, ...])


def main() -> list[Target]:
    """Write the page anew. Nothing is promised here, so there are no targets."""
    write_atomically(PAGE, with_tables(PAGE.read_text()))
    return []


def with_tables(text: str) -> str:
    """The page with every marked table replaced by what holds today."""
    return marked_tables.with_tables(text, TABLES)


def _trainers() -> list[str]:
    """A row for each thing in which the trainers differ: the value of most of them, and who has another."""
    rows = [(f"`{name}`", *_values_of(name)) for name in Implementation.model_fields if name != "name"]
    return marked_tables.table_lines(("constant", "usual", "otherwise"), [row for row in rows if row[-1]])


def _values_of(field: str) -> tuple[str, str]:
    names: dict[str, list[str]] = {}
    for trainer in IMPLEMENTATIONS.values():
        names.setdefault(_cell_of(getattr(trainer, field)), []).append(f"`{trainer.name}`")
    usual, *others = sorted(names, key=lambda value: -len(names[value]))
    return usual, "; ".join(f"{value}: {', '.join(names[value])}" for value in others)


def _kernels() -> list[str]:
    rows = (
        ("tiles (rows x columns: rate)", ", ".join(f"{m} x {n}: {rate:g}" for m, n, rate in TILES)),
        ("row length divisible by: rate", ", ".join(f"{length}: {rate:g}" for length, rate in ALIGNMENTS)),
        ("depth that a tile's pipeline fills in", str(PROLOGUE)),
    )
    return marked_tables.table_lines(("constant of every device", "value"), rows)


def _clusters() -> list[str]:
    """A row for all clusters whose constants are the same."""
    columns = ("clusters", "matmul", "attention", "memory", "link", "kernel µs", "reserved GiB", "gaps")
    alike = _names_by(_cluster_cells)
    return marked_tables.table_lines(columns, [(", ".join(names), *cells) for cells, names in alike.items()])


def _cluster_cells(cluster: ClusterSpec) -> tuple[str, ...]:
    constants = cluster.efficiency
    shares = (constants.matmul, constants.attention, constants.memory, constants.link)
    reserved = cluster.reserved_memory_bytes / GIBIBYTE
    rest = (MICRO * constants.kernel_seconds, reserved, cluster.fragmentation)
    return tuple(f"{value:.4g}" for value in (*shares, *rest))


def _sources() -> Iterator[str]:
    """The rows to which each cluster was fitted, as its file says. Clusters whose files say the same share a line."""
    yield from (f"- {', '.join(names)}: {words}." for words, names in _names_by(_source_of).items())


def _source_of(cluster: ClusterSpec) -> str:
    """What its files say of its own constants, without what the page says of all of them."""
    fitted, reserved = cluster.efficiency.source.removeprefix(FITTED).removeprefix(ROWS), cluster.reserved_memory_source
    return fitted if reserved.startswith(ASSUMED) else f"{fitted}. Reserved memory and gaps: {reserved}"


def _names_by(described: Callable[[ClusterSpec], Described]) -> dict[Described, list[str]]:
    """The clusters of each description."""
    found: dict[Described, list[str]] = {}
    for name in options("cluster"):
        if name != MEASURED_BY_ITS_USERS:
            found.setdefault(described(cluster_named(name)), []).append(f"`{name}`")
    return found


def _cell_of(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


TABLES = {"trainers": _trainers, "kernels": _kernels, "clusters": _clusters, "sources": _sources}

if __name__ == "__main__":
    main()
