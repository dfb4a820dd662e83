"""How far predicted memory is off, by trainer and number of devices, from published runs that say what they held.

python -m benchmarks.memory_odds --write    learns it anew, into sweeps/memory_odds.yaml

The logarithm of needed over predicted bytes of a table is a mean of all, a part of its trainer, a part that grows with
the doublings of the devices, and a part of its own; rows of a table are spread around that. The variances are those
under which the tables are likeliest. Tables of the held-out files are no part of it: they are by people whose types of
masters, and whose way to read memory off, is often not known. Of their rows those whose configuration is whole are told
from those of which a part was assumed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import yaml

from benchmarks.own_runs import own_runs
from benchmarks.published_rows import PUBLISHED, PUBLISHED_2, compared_rows, published_rows, table_of
from benchmarks.target import Target, at_least, figure
from conf.grouped import grouped
from costs.setting import Floats
from costs.trainers import TRISWEEP
from sweeps.memory_odds import LIKELY, NEAR, Learned, MemoryOdds
from sweeps.table.cells import text_of
from train_core.trial.atomic import write_atomically

OWN = "own runs"
LEARNED = Path(__file__).parents[1] / "sweeps" / "memory_odds.yaml"
HELD_OUT = tuple(PUBLISHED.with_name(f"published_{number}.csv") for number in (3, 4, 5))
SPREADS = (0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08)
"""Of trainers, and of tables: those that are tried."""
MEAN_SPREAD, DOUBLING_SPREAD = 1.0, 0.02
"""What is taken of the mean of all and of a doubling's part before any row: nothing, and next to nothing."""


class MemoryRow(NamedTuple):
    """A run that says what a device held; `needed` is the logarithm of that over the predicted.

    `is_whole` where its source says its whole configuration, so that whoever copied it had to assume no part.
    """

    table: str
    trainer: str
    devices: int
    needed: float
    is_whole: bool = True


def memory_rows(paths: Sequence[Path] = (PUBLISHED, PUBLISHED_2)) -> list[MemoryRow]:
    rows = []
    for one in compared_rows(published_rows(paths).values()):
        if one.memory_error is not None:
            run = one.prediction.configuration
            size = run.setup.parallel.world_size
            needed, is_whole = -log(1 + one.memory_error), text_of(one.row, "confirmed").lower() == "yes"
            rows.append(MemoryRow(table_of(one.row), run.implementation.name, size, needed, is_whole))
    return rows


def own_rows() -> list[MemoryRow]:
    """The runs of this package's own trainer on one GPU, of which the allocator's bytes are known."""
    return [MemoryRow(OWN, TRISWEEP.name, 1, -log(1 + run.memory_error)) for run in own_runs()]


@dataclass(frozen=True)
class Tables:
    """Rows as tables, in columns: their trainers, doublings of devices, means, and numbers of rows."""

    trainers: list[str]
    doublings: Floats
    means: Floats
    sizes: Floats
    within: float

    @classmethod
    def of(cls, rows: Sequence[MemoryRow]) -> Tables:
        found = grouped(rows, lambda row: (row.trainer, row.table))
        sizes = np.array([len(members) for members in found.values()], dtype=float)
        # The allocator's bytes of one device are spread less than what devices of a large job hold.
        whole = [members for (_, table), members in found.items() if table != OWN]
        within = sum(len(members) * np.var([row.needed for row in members]) for members in whole)
        return cls(
            [trainer for trainer, _ in found],
            np.array([fmean(np.log2(max(row.devices / NEAR, 1)) for row in members) for members in found.values()]),
            np.array([fmean(row.needed for row in members) for members in found.values()]),
            sizes,
            float(within / sum(len(members) - 1 for members in whole)),
        )

    def fit(self, of_trainers: float, of_tables: float) -> tuple[float, list[str], Floats, Floats]:
        """The likelihood with these spreads, the trainers, and the mean and the covariance of the parts."""
        names = sorted(set(self.trainers))
        marks = [[trainer == name for name in names] for trainer in self.trainers]
        rows: Any = np.column_stack([np.ones(len(marks)), self.doublings, np.array(marks, dtype=float)])
        prior = np.diag([MEAN_SPREAD**2, DOUBLING_SPREAD**2, *[of_trainers**2] * len(names)])
        both = rows @ prior @ rows.T + np.diag(of_tables**2 + self.within / self.sizes)
        weights = np.linalg.solve(both, rows @ prior)
        likelihood = -self.means @ np.linalg.solve(both, self.means) - np.linalg.slogdet(both)[1]
        return float(likelihood), names, weights.T @ self.means, prior - prior @ rows.T @ weights


def learned(rows: Sequence[MemoryRow]) -> Learned:
    tables = Tables.of(rows)
    of_trainers, of_tables = max(product(SPREADS, SPREADS), key=lambda spreads: tables.fit(*spreads)[0])
    _, names, mean, covariance = tables.fit(of_trainers, of_tables)
    new = of_tables**2 + tables.within
    variances = {}
    for place, name in enumerate(names, start=2):
        both = covariance[np.ix_((0, place), (0, place))].sum()
        variances[name] = float(both + new)
    return Learned(
        means={name: _rounded(mean[0] + own) for name, own in zip(names, mean[2:], strict=True)},
        spreads={name: _rounded(variance**0.5) for name, variance in variances.items()},
        other_mean=_rounded(mean[0]),
        other_spread=_rounded(float(covariance[0, 0] + of_trainers**2 + new) ** 0.5),
        doubling=_rounded(mean[1]),
    )


def _rounded(value: float) -> float:
    return round(float(value), 4)


def main() -> list[Target]:
    """Every table predicted by the others: how many of its runs held no more than is likely."""
    rows, known = memory_rows(), [*memory_rows(), *own_rows()]
    held = [
        _holds(row, learned([one for one in known if one.table != table]))
        for table, of in grouped(rows, lambda row: row.table).items()
        for row in of
    ]
    everything = learned(known)
    unseen = [(row.is_whole, _holds(row, everything)) for row in memory_rows(HELD_OUT)]
    whole, assumed = ([held for is_whole, held in unseen if is_whole is wanted] for wanted in (True, False))
    what = f"runs that held no more than {LIKELY:.0%} are expected to"
    return [
        at_least(f"{what}, each table predicted by the others, of {len(held)}", 90, 100 * fmean(held), " %"),
        figure(f"  in held-out files, of {len(whole)} whose configuration is whole", 100 * fmean(whole), " %"),
        figure(f"  in held-out files, of {len(assumed)} of which a part was assumed", 100 * fmean(assumed), " %"),
    ]


def _holds(row: MemoryRow, known: Learned) -> bool:
    return row.needed <= MemoryOdds.of(row.trainer, row.devices, known).needed.inv_cdf(LIKELY)


if __name__ == "__main__":
    if "--write" in sys.argv:
        head = "# Written by `python -m benchmarks.memory_odds --write`; do not edit.\n"
        found = learned([*memory_rows(), *own_rows()]).model_dump()
        write_atomically(LEARNED, head + yaml.safe_dump(found, sort_keys=False))
    else:
        from benchmarks.target import print_targets

        print_targets(main())
