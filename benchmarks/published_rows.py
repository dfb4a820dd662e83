"""The published rows that predictions are held against: priced, compared, and by the tables and series they belong to.

A table is what one source measured of one kind on one machine; a series is one model within it. The `set` column says
which validation a row belongs to; rows that were only recalled are not in it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrate.refit_cluster import MeasuredRun
from conf.grouped import grouped
from results.analysis.score import RowComparison, comparison
from sweeps.table.cells import Row, flag_of, text_of
from sweeps.table.prices import PricedRow, price, read_table

PUBLISHED = Path(__file__).with_name("published.csv")
FRONTIER_SCALING = Path(__file__).with_name("frontier_scaling.csv")


def row_sets(path: Path = PUBLISHED, column: str = "set") -> dict[str, list[PricedRow]]:
    """The rows of a table by what they say in `column`, those of each in the order of the file."""
    return grouped(price(read_table(path).records), lambda row: row.record.row[column])


def compared_rows(priced: Iterable[PricedRow]) -> list[RowComparison]:
    """Those of the rows that were priced and hold measurements."""
    return [one for one in map(_comparison, priced) if one is not None]


def _comparison(row: PricedRow) -> RowComparison | None:
    """The row beside what it measured; None of one whose host waited for every kernel."""
    return None if flag_of(row.record.row, "launch_blocking", default=False) else comparison(row)


def sweep_of(compared: RowComparison) -> str:
    """The sweep of the source that a row belongs to: its section, else its table."""
    return text_of(compared.row, "section") or compared.row["table"]


PUBLISHED_2 = PUBLISHED.with_name("published_2.csv")
MOST_TELLING = 25
TABLES = (  # what a series of published_2.csv begins with, and its table
    ("vtrain multi", "vTrain, 64-512 GPUs"),
    ("vtrain single", "vTrain, 2-8 GPUs"),
    ("dgxc v24.11.1 gpt3-175b bf16", "dgxc GPT-3 175B, H100 bf16"),
    ("dgxc v24.11.1 gpt3-175b fp8", "dgxc GPT-3 175B, H100 fp8"),
    ("dgxc v24.11.1 llama3.1-70b bf16", "dgxc Llama 70B (cp), H100 bf16"),
    ("dgxc v24.11.1 llama3.1-70b fp8", "dgxc Llama 70B (cp), H100 fp8"),
    ("dgxc v24.11.1 grok1 bf16", "dgxc Grok-1 (experts), H100 bf16"),
    ("dgxc v24.11.1 grok1 fp8", "dgxc Grok-1 (experts), H100 fp8"),
    ("dgxc v25.05.05 nemotron4-340b GB200 weak bf16", "dgxc Nemotron 340B, GB200 bf16"),
    ("dgxc v25.05.05 nemotron4-340b GB200 weak fp8", "dgxc Nemotron 340B, GB200 fp8"),
    ("bridge Qwen3", "Megatron-Bridge, experts, Blackwell"),
    ("bridge", "Megatron-Bridge, Blackwell"),
    ("mlperf", "MLPerf GPT-3, H100 fp8"),
    ("simumax deepseek", "SimuMax experts, 8 B200"),
    ("simumax", "SimuMax dense, 8 B200"),
    ("jupiter", "JUPITER 32B, GH200"),
    ("juwels", "JUWELS 13B, A100"),
    ("internevo", "InternEvo 7B, A100"),
    ("tprimat", "tprimat"),
    ("lumi", "LUMI-G"),
    ("aurora", "Aurora"),
)


@dataclass(frozen=True)
class MeasuredRow:
    """One row that was priced and holds a measured step.

    Attributes:
        place: file and line, such as `published.csv:12`.
        seconds: what was measured.
    """

    place: str
    table: str
    series: str
    compared: RowComparison
    seconds: float

    @property
    def run(self) -> MeasuredRun:
        configuration = self.compared.prediction.configuration
        return MeasuredRun(configuration.setup, configuration.implementation, self.seconds)

    @property
    def source(self) -> str:
        """The publisher of the row: a repository in all of its releases, or a paper."""
        return text_of(self.compared.row, "source").split(" @")[0]

    @property
    def machine(self) -> str:
        """The machine that was measured. Sources whose nodes are of one kind have machines of their own."""
        return f"{self.compared.prediction.configuration.setup.cluster.name} of {self.source}"


def measured_rows(priced: Mapping[str, PricedRow]) -> list[MeasuredRow]:
    """Every row that was priced and says how long a step took, in their order.

    Args:
        priced: by place.
    """
    compared = [(place, _comparison(row)) for place, row in priced.items()]
    timed = [(place, one, one.step_seconds) for place, one in compared if one is not None]
    return [
        MeasuredRow(place, table_of(one.row), series_of(one.row), one, seconds)
        for place, one, seconds in timed
        if seconds is not None
    ]


def published_rows(paths: Sequence[Path] = (PUBLISHED, PUBLISHED_2)) -> dict[str, PricedRow]:
    """Every published row that somebody confirmed, by its place, priced."""
    found = {}
    for path in filter(Path.exists, paths):
        records = read_table(path).records
        for row in price(records):
            if text_of(row.record.row, "confirmed").lower() != "no":
                found[f"{path.name}:{row.record.line}"] = row
    return found


def series_weights(rows: Sequence[MeasuredRow]) -> NDArray[np.float64]:
    """A weight for every row, (n,): a series of n rows weighs as much as the root of n rows that stand alone.

    More than MOST_TELLING rows of a series add nothing, since what is wrong with a few is wrong with all. Rows that
    call themselves qualitative, or say that overhead of the framework dominates them, are compared, and weigh nothing.
    """
    sizes = Counter(row.series for row in rows)
    weights = [min(sizes[row.series], MOST_TELLING) ** 0.5 / sizes[row.series] for row in rows]
    return np.array(weights) * [not says_little(row) for row in rows]


def weighted_quantile(values: NDArray[np.float64], weights: NDArray[np.float64], share: float) -> float:
    """The value below which the rows that weigh this share of all lie."""
    order = np.argsort(values)
    below = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    return float(np.interp(share, below, values[order]))


def says_little(row: MeasuredRow) -> bool:
    """True if the row's source says that its figures tell little of the device and the plan."""
    return flag_of(row.compared.row, "tells_little", default=False)


def table_of(row: Row) -> str:
    """The table that a row belongs to, as the pages call it."""
    series, source_table = text_of(row, "series"), text_of(row, "table")
    if series:
        return next((name for start, name in TABLES if series.startswith(start)), series)
    tail = re.split(r": |/", source_table)[-1]
    family = text_of(row, "set") or text_of(row, "source")
    return (
        family
        if family in ("bloom", "sc21-figures") or family.startswith(("sc21", "frontier"))
        else f"{family}: {tail}"
    )


def series_of(row: Row) -> str:
    """One model in one table."""
    return text_of(row, "series") or f"{table_of(row)}, {text_of(row, 'model')}"
