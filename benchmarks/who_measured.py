"""Users, makers and papers apart: how far predictions are off for each, and what their own rows bring.

python -m benchmarks.who_measured            writes sweeps/practices.yaml from published_3.csv to published_5.csv
python -m benchmarks.who_measured --replay   also replays calibrations (minutes), and writes own_rows.csv

No constant was fitted to these rows. What is said of a table was learned without its group of sources.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import exp, expm1, isnan, log
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import yaml

from benchmarks.forward import FORWARD_TESTS, forward_rows
from benchmarks.left_out import read_rows, write_rows
from benchmarks.levels import Ends, mean_over_tables
from benchmarks.practices import (
    Floats,
    learn,
    learn_without,
    left_out_intervals,
    log_taken,
    table_of_group,
    who_measured,
)
from benchmarks.published_rows import MeasuredRow
from benchmarks.table_results import FEWEST_TO_CHOOSE_FROM, job_of, regret_of
from benchmarks.target import Target, at_most, print_targets, within
from calibrate.refit_cluster import (
    NUM_RUNS,
    FinishedTrial,
    PricedRuns,
    constants_by,
    present_constants,
    refit_cluster,
)
from conf.grouped import grouped
from conf.own_files import at_hand
from results.render.units import percent
from sweeps.confidence import outside_of
from sweeps.practice import PRACTICES, Level
from train_core.trial.atomic import write_atomically

HEADING = "# Written by `python -m benchmarks.who_measured`; do not edit.\n"
OWN_ROWS = Path(__file__).with_name("own_rows.csv")
NUM_DRAWS = 3
FEWEST_LEFT = 2
"""Rows of a table that are not among the five, for the table to be replayed."""


class ByWho(NamedTuple):
    """Predictions for the rows of users, makers or papers; errors and shares are means over tables.

    Attributes:
        error: mean absolute relative error, before any row of the table is known.
        width: upper over lower end of the interval, of which the mean is geometric.
        inside: share in the interval of 80 %, which was learned without the row's group.
        outside: error, and the same share, of rows that lie outside of what was validated; `validated`: of others.
        jobs, regret: jobs of at least four layouts, and what the one predicted fastest loses in the mean over them.
    """

    who: str
    tables: int
    rows: int
    error: float
    level: Level
    width: float
    inside: float
    outside: tuple[float, float]
    validated: tuple[float, float]
    jobs: int
    regret: float | None


class OwnRows(NamedTuple):
    """A table, once some of its own rows are known; errors are mean absolute ones of all others.

    Attributes:
        before: by a prediction that knows none of its rows.
        one: after a single row, in the mean over all of them.
        before_five, five: before and after five, in the mean over NUM_DRAWS; NaN where fewer than FEWEST_LEFT others
            are left.
    """

    who: str
    table: str
    rows: int
    before: float
    one: float
    before_five: float
    five: float

    @property
    def has_five(self) -> bool:
        return not isnan(self.five)

    @property
    def is_worse_than_twice(self) -> bool:
        return self.one > 2 * self.before or (self.has_five and self.five > 2 * self.before_five)


def forward_rows_of_all() -> list[MeasuredRow]:
    return [row for test in FORWARD_TESTS for row in forward_rows(test)]


def by_who(rows: Sequence[MeasuredRow]) -> list[ByWho]:
    """One result each for users, makers and papers."""
    around = left_out_intervals(rows)
    parts = grouped(zip(rows, around, strict=True), lambda each: who_measured(each[0]))
    return [_by_who(who, *zip(*parts[who], strict=True)) for who in PRACTICES]


def _by_who(who: str, rows: Sequence[MeasuredRow], around: Sequence[Ends]) -> ByWho:
    tables = [" ".join(table_of_group(row)) for row in rows]
    errors = [abs(expm1(-log_taken(row))) for row in rows]
    inside = [low <= row.seconds <= high for row, (low, high) in zip(rows, around, strict=True)]
    far = [bool(outside_of(row.run.setup, row.run.implementation.name)) for row in rows]

    def shares(*, outside: bool) -> tuple[float, float]:
        chosen = [i for i, is_far in enumerate(far) if is_far is outside]
        of = [tables[i] for i in chosen]
        share, error = (mean_over_tables([values[i] for i in chosen], of) for values in (inside, errors))
        return error, share

    regrets = [
        regret_of([(each.compared.prediction.estimate.step_seconds, each.seconds) for each in job])
        for job in grouped(rows, job_of).values()
        if len(job) >= FEWEST_TO_CHOOSE_FROM and not is_of_vtrain(job[0])
    ]
    return ByWho(
        who,
        len(set(tables)),
        len(rows),
        mean_over_tables(errors, tables),
        learn(rows),
        exp(mean_over_tables([log(high / low) for low, high in around], tables)),
        mean_over_tables(inside, tables),
        shares(outside=True),
        shares(outside=False),
        len(regrets),
        fmean(regrets) if regrets else None,
    )


def is_of_vtrain(row: MeasuredRow) -> bool:
    """True for rows of vTrain, whose jobs are so many that the others would not be seen beside them."""
    return "vTrain" in row.source


def own_rows(rows: Sequence[MeasuredRow]) -> list[OwnRows]:
    """Every trainer on a machine with two rows or more, by what was learned without its group of sources."""
    tables = grouped(rows, lambda row: (*table_of_group(row), row.run.setup.cluster.name)).items()
    return [_own_rows(name, members, learn_without(rows, members[0])) for name, members in tables if len(members) > 1]


def _own_rows(name: tuple[str, ...], rows: Sequence[MeasuredRow], level: Level) -> OwnRows:
    taken, every = np.array([log_taken(row) for row in rows]), np.arange(len(rows))
    one = [np.delete(_errors(taken, level.own([taken[i]]).factor), i).mean() for i in every]
    before_five = five = float("nan")
    if len(rows) >= NUM_RUNS + FEWEST_LEFT:
        draws = [np.random.default_rng(draw).permutation(every)[:NUM_RUNS] for draw in range(NUM_DRAWS)]
        before_five = fmean(np.delete(_errors(taken, 1.0), chosen).mean() for chosen in draws)
        five = fmean(_after_five(rows, chosen.tolist(), level) for chosen in draws)
    before = float(_errors(taken, 1.0).mean())
    return OwnRows(
        who_measured(rows[0]), ", ".join(dict.fromkeys(name)), len(rows), before, float(np.mean(one)), before_five, five
    )


def _errors(taken: Floats, factor: float) -> Floats:
    """Absolute relative errors of predictions times a factor, (n,)."""
    return np.abs(factor * np.exp(-taken) - 1)


def _after_five(rows: Sequence[MeasuredRow], chosen: Sequence[int], level: Level) -> float:
    """The mean error of the other rows after `trisweep calibrate --from-csv` with the chosen ones."""
    practice = PRACTICES[who_measured(rows[0])]
    runs = [rows[index].run for index in chosen]
    trials = [FinishedTrial("", run.setup, run.step_seconds, None, True, run.implementation, practice) for run in runs]
    found = refit_cluster(runs[0].setup.cluster, trials, {practice: level})
    others = PricedRuns([row.run for index, row in enumerate(rows) if index not in chosen])
    factor = found.levels[runs[0].implementation.name].factor if found.levels else 1.0
    constants = constants_by(found.after) if not found.levels else present_constants
    return float(np.abs(factor * others.step_seconds(constants) / others.measured - 1).mean())


def main() -> list[Target]:
    rows = forward_rows_of_all()
    found = by_who(rows)
    levels = {PRACTICES[each.who]: each.level.model_dump() for each in found}
    write_atomically(at_hand("sweeps/practices.yaml"), HEADING + yaml.safe_dump(levels, sort_keys=False))
    return who_targets(found, read_rows(OWN_ROWS, OwnRows))


def who_targets(found: Sequence[ByWho], own: Sequence[OwnRows]) -> list[Target]:
    """What was promised of users, makers and papers."""
    users = [each for each in own if each.who == "users"]
    after = [100 * each.five for each in users if each.has_five]
    worse = [each for each in users if each.is_worse_than_twice]
    named = ", ".join(f"{each.table}: {percent(each.before)} to {percent(each.one)} % after one" for each in worse)
    return [
        *(
            within(f"rows of {each.who} in an interval of 80 % learned without them", 80, 5, 100 * each.inside, " %")
            for each in found
        ),
        at_most("tables of users after one row of their own: mean error", 20, _mean_after_one(users), " %"),
        at_most(f"{len(after)} tables of users after five: mean error", 14, fmean(after) if after else None, " %"),
        at_most("tables of users that own rows made worse than twice", 0, len(worse), remark=named),
    ]


def _mean_after_one(users: Sequence[OwnRows]) -> float | None:
    return 100 * fmean(each.one for each in users) if users else None


def run(arguments: Sequence[str]) -> None:
    if unknown := set(arguments) - {"--replay"}:
        sys.exit(f"{', '.join(unknown)}: not known. Known: --replay.")
    if arguments:
        write_rows(OWN_ROWS, OwnRows, own_rows(forward_rows_of_all()), digits=4)
        print(f"Written: {OWN_ROWS.name}")
    print_targets(main())


if __name__ == "__main__":
    run(sys.argv[1:])
