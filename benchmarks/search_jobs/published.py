"""Published sweeps replayed: the rows that were measured are all there is to choose from, and each has one figure.

BLOOM's chronicle has four sections with enough layouts of one job. Of Frontier's study only three rates of three models
are published, so that nothing can be chosen there. Of a layout that a section measures twice, the first row counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from benchmarks.measured_rows import measured_rows, published_rows
from benchmarks.published_rows import row_sets, sweep_of
from benchmarks.search_jobs.contest import Played
from benchmarks.search_jobs.grounds import NEAR
from conf.compose.load import load
from conf.errors import ConfigError
from conf.plan.experiment import Experiment, ExperimentParts
from conf.types.schema import Value
from results.score import RowComparison
from sweeps.replay.reading import ReplayedReading, replayed_reading
from sweeps.replay.run import as_measured
from sweeps.search.layouts.bayes import Bayes
from sweeps.search.layouts.priced import Priced, join_plans, price_with_slopes
from sweeps.table.cells import text_of
from sweeps.trial import Trial
from train_core.costs.estimate import plan_of, setting_of
from train_core.measurement import Measurement

FEWEST_ROWS = 6
GROUND_TABLES = ("bloom", "JUPITER", "vTrain")


class Rows:
    """The rows of one section as candidates."""

    def __init__(self, rows: Sequence[RowComparison]) -> None:
        parts = load(["data=synthetic"])
        by_fingerprint = {one.fingerprint: (row, one) for row in reversed(rows) if (one := _experiment(row, parts))}
        self.rows = [row for row, _ in reversed(by_fingerprint.values())]
        self.experiments = [one for _, one in reversed(by_fingerprint.values())]
        self.prices = join_plans([_priced(row) for row in self.rows])
        self._numbers = {one.fingerprint: number for number, one in enumerate(self.experiments)}

    def experiment(self, row: int) -> Experiment:
        return self.experiments[row]

    def point(self, row: int) -> dict[str, Value]:
        return {"row": row}

    def row_of(self, experiment: Experiment) -> int | None:
        return self._numbers.get(experiment.fingerprint)

    @property
    def rates(self) -> list[float]:
        """Measured FLOP/s per device that the model needs; 0 of a row that ran out of memory."""
        return [
            float(self.prices.flops[n] / (row.step_seconds or inf) / self.experiments[n].parallel.world_size)
            for n, row in enumerate(self.rows)
        ]

    def finished(self, number: int) -> ReplayedReading:
        experiment, row = self.experiments[number], self.rows[number]
        over = 2.0 if row.step_seconds is None else 0.5  # only whether it fits is told
        measured = as_measured(experiment, row.step_seconds or 1.0, over * experiment.cluster.device.memory_bytes)
        told = measured if row.step_seconds is None else _without_memory(measured)
        trial = Trial(
            trial_id=str(number),
            point={},
            experiment=experiment,
            estimate=None,
            infeasible_reason=None,
            selected=True,
            is_baseline=False,
        )
        return replayed_reading(trial, told)


def measured_grounds() -> list[Rows]:
    """Rows of one job (model, devices, batch) that differ in their layouts alone, of sources with many such rows."""
    jobs: dict[tuple[str, ...], list[RowComparison]] = {}
    for each in measured_rows(published_rows()):
        row = each.compared.row
        job = (each.table, *(text_of(row, column) for column in ("model", "num_gpus", "global_batch")))
        if each.table.startswith(GROUND_TABLES):
            jobs.setdefault(job, []).append(each.compared)
    grounds = [Rows(rows) for rows in jobs.values() if len(rows) >= FEWEST_ROWS]
    return [ground for ground in grounds if len(ground.rows) >= FEWEST_ROWS]


def sections() -> dict[str, Rows]:
    """The sections of BLOOM's chronicle with enough rows."""
    found: dict[str, list[RowComparison]] = {}
    for one in row_sets()["bloom"].comparisons:
        found.setdefault(sweep_of(one), []).append(one)
    rows = {name: Rows(some) for name, some in found.items() if len(some) >= FEWEST_ROWS}
    return {name: some for name, some in rows.items() if len(some.rows) >= FEWEST_ROWS}


def play_rows(rows: Rows, rng: np.random.Generator | None = None, *, min_gain: float = 0.0) -> Played:
    """Jobs until 98 % of the best rate: of `search=bayes`, which may end itself before, or at random."""
    rates, best = rows.rates, max(rows.rates)
    search = Bayes(rows, "throughput", min_gain, len(rates) + 1)
    order = None if rng is None else rng.permutation(len(rates)).tolist()
    trials: list[ReplayedReading] = []
    lost, share = 0, 0.0
    while share < NEAR and len(trials) < len(rates):
        number = order[len(trials)] if order is not None else _asked(search, trials)
        if number is None:
            return Played(None, len(trials), lost, share, True)
        trials.append(rows.finished(number))
        lost += rates[number] == 0
        share = max(share, rates[number] / best)
    return Played(len(trials) if share >= NEAR else None, len(trials), lost, share, False)


def _asked(search: Bayes, trials: Sequence[ReplayedReading]) -> int | None:
    proposals = search.ask(trials, 1).proposals
    number = proposals[0].point["row"] if proposals else None
    assert number is None or isinstance(number, int)
    return number


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


def _priced(row: RowComparison) -> Priced:
    configuration = row.prediction.configuration
    setting = setting_of(configuration.setup, configuration.implementation)
    return price_with_slopes(setting, plan_of(configuration.setup), configuration.setup.batch.global_batch_size)


def _without_memory(measured: Measurement) -> Measurement:
    assert measured.performance is not None
    performance = measured.performance.model_copy(update={"peak_memory_bytes": ()})
    return measured.model_copy(update={"performance": performance})
