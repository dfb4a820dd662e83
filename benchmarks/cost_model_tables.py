"""The tables of constants in docs/cost-model.md, made from the cluster files and the trainers so that they stay true.

python -m benchmarks.cost_model_tables    writes them into the page, each between its pair of comments
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import marked_tables
from benchmarks.target import Target
from conf.compose.load import cluster_named
from conf.folders import options
from conf.types.cluster_spec import ClusterSpec
from conf.units import GIBIBYTE, GIGA
from train_core.costs.kernels import ALIGNMENTS, PROLOGUE, TILES
from train_core.costs.trainers import IMPLEMENTATIONS, Implementation
from train_core.whole_files import write_atomically

PAGE = Path(__file__).parents[1] / "docs" / "cost-model.md"
MEASURED_BY_ITS_USERS = "local"
"""The cluster that stands for whatever machine a user has; its numbers are no facts to print."""

MICRO = 1e6


def main() -> list[Target]:
    """Write the page anew. Nothing is promised here, so there are no targets."""
    write_atomically(PAGE, with_tables(PAGE.read_text()))
    return []


def with_tables(text: str) -> str:
    """The page with every marked table replaced by what holds today."""
    return marked_tables.with_tables(text, TABLES)


def _trainers() -> list[str]:
    """One column for each trainer, one row for each thing in which they differ."""
    trainers = list(IMPLEMENTATIONS.values())
    values_of = {name: [getattr(one, name) for one in trainers] for name in Implementation.model_fields}
    differing = {name: values for name, values in values_of.items() if name != "name" and len(set(values)) > 1}
    rows = [(f"`{name}`", *map(_cell_of, values)) for name, values in differing.items()]
    return marked_tables.table_lines(("", *values_of["name"]), rows)


def _kernels() -> list[str]:
    rows = (
        ("tiles (rows x columns: rate)", ", ".join(f"{m} x {n}: {rate:g}" for m, n, rate in TILES)),
        ("row length divisible by: rate", ", ".join(f"{length}: {rate:g}" for length, rate in ALIGNMENTS)),
        ("depth that a tile's pipeline fills in", str(PROLOGUE)),
    )
    return marked_tables.table_lines(("constant of every device", "value"), rows)


def _clusters() -> list[str]:
    columns = ("cluster", "matmul", "attention", "memory", "link", "kernel µs", "reserved GiB", "gaps")
    return marked_tables.table_lines(columns, map(_cluster_cells, _described_clusters()))


def _cluster_cells(cluster: ClusterSpec) -> tuple[str, ...]:
    constants = cluster.efficiency
    shares = (constants.matmul, constants.attention, constants.memory, constants.link)
    reserved = cluster.reserved_memory_bytes / GIBIBYTE
    rest = (MICRO * constants.kernel_seconds, reserved, cluster.fragmentation)
    return (cluster.name, *(f"{value:.4g}" for value in (*shares, *rest)))


def _sources() -> Iterator[str]:
    """The rows to which each cluster was fitted, as its file says. Clusters whose files say the same share a line."""
    said: dict[str, list[str]] = {}
    for cluster in _described_clusters():
        words = f"{cluster.efficiency.source}. Reserved memory and gaps: {cluster.reserved_memory_source}."
        said.setdefault(words, []).append(f"`{cluster.name}`")
    yield from (f"- {', '.join(names)}: {words}" for words, names in said.items())


def _links() -> list[str]:
    columns = ("cluster", "tiers: devices that they span, GB/s for each device and direction, latency")
    return marked_tables.table_lines(
        columns, [(cluster.name, "; ".join(_tiers(cluster))) for cluster in _described_clusters()]
    )


def _tiers(cluster: ClusterSpec) -> Iterator[str]:
    for link in cluster.links:
        rate = link.bandwidth_bytes_per_second / GIGA
        yield f"{link.name} {link.num_devices}: {rate:g} GB/s, {MICRO * link.latency_seconds:g} µs"


def _described_clusters() -> list[ClusterSpec]:
    return [cluster_named(name) for name in options("cluster") if name != MEASURED_BY_ITS_USERS]


def _cell_of(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


TABLES = {"trainers": _trainers, "kernels": _kernels, "clusters": _clusters, "sources": _sources, "links": _links}

if __name__ == "__main__":
    main()
