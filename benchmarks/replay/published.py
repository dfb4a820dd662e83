"""Published sweeps replayed: the rows that were measured are all there is to choose from, and each has one figure.

BLOOM's chronicle has four sections with enough layouts of one job. Of Frontier's study only three rates of three models
are published, so that nothing can be chosen there. Of a layout that a section measures twice, the first row counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from benchmarks.published_rows import MeasuredRow, compared_rows, measured_rows, published_rows, row_sets, sweep_of
from benchmarks.replay.players import Game, Ground, Player, SearchPlayer, play
from benchmarks.replay.run import ReplayedReading, as_measured, replayed_reading, unplanned_trial
from conf.compose.load import load
from conf.errors import ConfigError
from conf.grouped import grouped
from conf.plan.experiment import Experiment, ExperimentParts
from costs.setting import Floats
from results.analysis.score import RowComparison
from sweeps.points.axes import Point
from sweeps.search.layouts.bayes import Bayes
from sweeps.search.layouts.candidates import ListedPoints, priced_setup
from sweeps.search.layouts.priced import join_plans
from sweeps.table.cells import text_of
from train_core.trial.measurement import Measurement

FEWEST_ROWS = 6
GROUND_TABLES = ("bloom", "JUPITER", "vTrain")


class PublishedRows(ListedPoints):
    """The rows of one section as candidates of `search=bayes`."""

    def __init__(self, rows: Sequence[RowComparison]) -> None:
        parts = load(["data=synthetic"])
        by_fingerprint = {one.fingerprint: (row, one) for row in reversed(rows) if (one := _experiment(row, parts))}
        self.rows = [row for row, _ in reversed(by_fingerprint.values())]
        configurations = [row.prediction.configuration for row in self.rows]
        prices = join_plans([priced_setup(each.setup, each.implementation) for each in configurations])
        points: list[Point] = [{"row": number} for number in range(len(self.rows))]
        super().__init__([one for _, one in reversed(by_fingerprint.values())], points, prices)

    @property
    def rates(self) -> Floats:
        """Measured FLOP/s per device that the model needs; 0 of a row that ran out of memory, (n,)."""
        rates = [
            float(self.prices.flops[n] / (row.step_seconds or inf) / self.experiments[n].parallel.world_size)
            for n, row in enumerate(self.rows)
        ]
        return np.array(rates)


@dataclass(frozen=True, eq=False)
class PublishedGround(Ground):
    """Published rows on the machine that they were measured on; chance may choose any of them."""

    rows: PublishedRows

    @classmethod
    def of(cls, rows: PublishedRows) -> PublishedGround:
        rates = rows.rates
        return cls(rates / rates.max(), rates > 0, np.ones(len(rates), dtype=bool), rows)

    def reading_of(self, row: int) -> ReplayedReading:
        experiment, published = self.rows.experiments[row], self.rows.rows[row]
        over = 2.0 if published.step_seconds is None else 0.5  # only whether it fits is told
        measured = as_measured(experiment, published.step_seconds or 1.0, over * experiment.cluster.device.memory_bytes)
        seen = measured if published.step_seconds is None else _without_memory(measured)
        return replayed_reading(unplanned_trial(str(row), experiment), seen)

    def row_of_point(self, point: Point) -> int:
        number = point["row"]
        assert isinstance(number, int)
        return number

    def play(self, player: Player) -> Game:
        """The jobs of a player until one is near the best, it ends itself, or every row was chosen."""
        return play(player, self, len(self.shares))

    def bayes(self, min_gain: float = 0.0) -> SearchPlayer:
        return SearchPlayer(Bayes(self.rows, "throughput", min_gain, len(self.shares) + 1), self)


def measured_grounds() -> list[PublishedGround]:
    """Rows of one job (model, devices, batch) that differ in their layouts alone, of sources with many such rows."""

    def job(each: MeasuredRow) -> tuple[str, ...]:
        return (each.table, *(text_of(each.compared.row, name) for name in ("model", "num_gpus", "global_batch")))

    jobs = grouped((each for each in measured_rows(published_rows()) if each.table.startswith(GROUND_TABLES)), job)
    return [ground for rows in jobs.values() if (ground := _ground_of([each.compared for each in rows]))]


def sections() -> dict[str, PublishedGround]:
    """The sections of BLOOM's chronicle with enough rows, by name."""
    by_section = grouped(compared_rows(row_sets()["bloom"]), sweep_of)
    return {name: ground for name, rows in by_section.items() if (ground := _ground_of(rows))}


def _ground_of(rows: Sequence[RowComparison]) -> PublishedGround | None:
    """The ground of these rows; None where they are too few."""
    if len(rows) < FEWEST_ROWS:
        return None
    distinct = PublishedRows(rows)
    return PublishedGround.of(distinct) if len(distinct.rows) >= FEWEST_ROWS else None


def _experiment(row: RowComparison, parts: ExperimentParts) -> Experiment | None:
    """The row's setup with a training, which changes nothing; None where the trainer here could not run it."""
    setup = row.prediction.configuration.setup
    others = {
        name: getattr(parts, name) for name in ExperimentParts.model_fields if name not in type(setup).model_fields
    }
    try:
        return Experiment(**{name: getattr(setup, name) for name in type(setup).model_fields}, **others)
    except ConfigError:
        return None


def _without_memory(measured: Measurement) -> Measurement:
    assert measured.performance is not None
    performance = measured.performance.model_copy(update={"peak_memory_bytes": ()})
    return measured.model_copy(update={"performance": performance})
