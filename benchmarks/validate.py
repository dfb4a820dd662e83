"""Hold the cost model against every published row, and write docs/validation.md.

python -m benchmarks.validate              writes the page and prints the targets
python -m benchmarks.validate --summary    prints the targets
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import exp
from pathlib import Path
from statistics import fmean

from benchmarks.left_out import ReplayedCalibration
from benchmarks.levels import LevelResult
from benchmarks.marked_tables import table_lines
from benchmarks.table_results import MemoryResult, TableResult, TestedRow
from benchmarks.target import Target, print_targets
from benchmarks.validation import Validation, validation
from benchmarks.validation_summary import by_trainer, summary
from benchmarks.who_measured import ByWho, OwnRows
from results.render.units import ABSENT, percent, significant
from train_core.trial.atomic import write_atomically

PAGE = Path(__file__).parents[1] / "docs" / "validation.md"
HEADING = """\
<!-- Written by `python -m benchmarks.validate`; do not edit. -->
# Validation

Can a prediction be trusted? Published steps are predicted by constants that were fitted without them: some before
anybody had looked at them, the others without their table, source or generation of devices.
"""
LEFT_OUT = """\
**Left out** is the figure to go by: all constants are fitted again, from what is known of them without any table
(benchmarks/fitting/constants.py), to the rows of all *other* tables on *other* machines, and then predict the table.
Errors <sub>in small print</sub> are those of the constants in the tree, which have seen the table. *Constant* is one
rate per device, the best for those very rows. *Inside* is the share of rows in their interval of 80 %. *Regret*: how
much slower the layout that is predicted fastest is than the best one measured (the mean of those predicted within 0.1 %
of it), over all jobs of the table with at least four layouts. *Rank corr.*: Spearman's, of steps per second.

*sc21* is the Megatron-LM paper of 2021 (Narayanan et al.), *frontier* Dash et al. 2023, *bloom* BigScience's notes on
BLOOM-176B, *dgxc* NVIDIA's dgxc-benchmarking; *vTrain*, *SimuMax* and *tprimat* are simulators whose authors published
measurements; the others bear the names of their trainer or machine. Both files have each source.
"""
REMEMBERED = """\
*Figures* are rows that state how much memory a device held, *error* is the mean of theirs. *Fits or not* is of all
rows that tell: what was measured did fit, and some rows say that memory ran out.
"""
PROMISED = "What was promised before the fit, and what is seen. What was missed is missed, and stays in the list."
MADE = """\
`benchmarks/published.csv` and `published_2.csv` have the rows, `published_3.csv` to `published_5.csv` those of the
forward tests ([how a row is read](estimate.md)). `python -m benchmarks.fitting --residuals` fits anew (minutes) and
writes each row's figures into `benchmarks/left_out.csv` and `benchmarks/levels.csv`; `python -m
benchmarks.who_measured --replay` replays own rows of tables into `benchmarks/own_rows.csv`; `make bench` writes this
page.
"""
COLUMNS = ("table", "rows", "left out %", "", "constant %", "inside %", "regret %", "rank corr.")
MISSES = ("table", "model", "layout", "measured s", "left out s", "error %", "")
NUM_MISSES, MOST_OF_A_TABLE = 25, 2


def main() -> list[Target]:
    """Write docs/validation.md anew, and return the targets."""
    found = validation()
    write_atomically(PAGE, page(found))
    return list(found.targets)


def run(arguments: Sequence[str]) -> None:
    print_targets(validation().targets if "--summary" in arguments else main())


def page(found: Validation) -> str:
    """The whole page, ending in a newline."""
    targets = [(each.what, each.target, each.seen, each.verdict) for each in found.targets]
    parts = [HEADING, *summary(found), ""]
    parts += ["## Who measured\n", WHO_SAID, "", *_who(found.who), ""]
    parts += ["## By trainer\n", BY_TRAINER, "", *table_lines(TRAINER_COLUMNS, by_trainer(found.tables)), ""]
    parts += ["## Levels\n", LEVELS_SAID, "", *_levels(found.levels), ""]
    parts += ["## Tables\n", LEFT_OUT, *_tables(found.tables), ""]
    parts += ["## Own rows of users\n", OWN_SAID, "", *_own(found.own), ""]
    parts += ["## Five runs of one's own\n", CALIBRATED, "", *_calibrations(found.calibrations), ""]
    parts += ["## Largest misses\n", MISSED, "", *_misses(found.tables), ""]
    parts += ["## Memory\n", REMEMBERED, *_memories(found.memories), ""]
    parts += ["## Targets\n", PROMISED, "", *table_lines(("what", "target", "seen", "verdict"), targets), ""]
    parts += ["## Rows without a prediction\n", *_unpriced_lines(found), ""]
    parts += ["## How it is made\n", MADE]
    return "\n".join(parts).rstrip() + "\n"


WHO_COLUMNS = ("who", "tables", "rows", "off by %", "10 %", "half", "90 %", "inside %", "upper over lower end")
WHO_MORE = ("who", "validated: off by %", "inside %", "outside: off by %", "inside %", "jobs", "regret %")
WHO_SAID = """\
*Users* ran a trainer that others make, on machines at hand; *makers* of a device, a trainer or a cloud published what
it reaches; authors of *papers* laid runs out to compare them. No constant is fitted to these rows
(`benchmarks/published_3.csv` to `published_5.csv`). A table is one trainer on one device of one group of sources, and
means are over tables. *10 %*, *half* and *90 %* took less than so many times what was predicted, which is where
intervals end (`python -m benchmarks.who_measured`); *inside* is the share of rows in an interval that was learned
without their group of sources. *Outside* are rows that lie outside of what was validated. *Regret* is over jobs of at
least four layouts, without vTrain's, which are most of them."""
OWN_SAID = """\
Every trainer on a machine with two rows of users or more. *Before*: no row of the table's group of sources is known.
*One*: the mean error of all other rows after each in turn. *Five*: after `trisweep calibrate --from-csv` on five, in
the mean of three draws, where at least two others are left."""
OWN_COLUMNS = ("table", "rows", "before %", "one %", "before five, the others %", "five %")
LEVEL_COLUMNS = ("left out", "groups", "tables", "rows", "off by %", "inside %", "upper over lower end")
LEVELS_SAID = """\
Rows of a table err together, so do tables of a source (its machine, its release, the hand that tuned it), and sources
on one generation of devices. Each level leaves all rows of a group out, fits without them, and predicts them. *Inside*
is the share of rows in the interval of 80 % of their practice, which the forward files taught; means are over tables,
that of the widths is geometric. Five generations are little to stand on.

*Forward* are rows that a commit predicted before anybody here had looked at them: `benchmarks/published_3.csv`, then
`published_4.csv`, of which users measured many, and last `published_5.csv`. No constant is fitted to any. The second
and third are blind tests of that day's widths, which were chosen between the first two. The same rows as predicted
today are no blind test, because some mechanisms and readings were chosen by what they showed. A table is there what one
group of sources measured on one device. The noise floor, as a review of the first three files counted it: 99
configurations that two sources or more print differ by 1.7 % in the median and 3.9 % in the mean."""
TRAINER_COLUMNS = ("trainer", "devices", "tables", "rows", "left out %", "worst table %")
BY_TRAINER = """\
How far tables like your plan were off. A trainer that is not here, `trisweep` among them, has no published row: its
predictions rest on the constants of the devices and on what its code does."""
CALIBRATED = """\
`trisweep calibrate` on five rows of a table (half of one that has fewer than ten), begun with constants fitted without
that table and its machine: the mean error on the rest before and after. *Chosen*: the five that say most of the
constants, one after another the row whose step is least certain yet; no measured time is looked at. *Random*: in the
mean of five draws. *All others*: each fifth of the table, once the four other fifths are known; what is left there no
five runs can undo. A table of more than 60 rows is represented by 60."""
MISSED = "The largest of all, at most two of a table."


def _who(found: Sequence[ByWho]) -> list[str]:
    ends = [[f"{exp(each):.2f}" for each in (of.level.low, of.level.middle, of.level.high)] for of in found]
    cells = [
        (of.who, str(of.tables), str(of.rows), percent(of.error), *times, percent(of.inside), f"{of.width:.2f}")
        for of, times in zip(found, ends, strict=True)
    ]
    more = [
        (of.who, *(percent(share) for share in (*of.validated, *of.outside)), str(of.jobs), percent(of.regret))
        for of in found
    ]
    return [*table_lines(WHO_COLUMNS, cells), "", *table_lines(WHO_MORE, more)]


def _own(found: Sequence[OwnRows]) -> list[str]:
    users = [each for each in found if each.who == "users"]
    cells = [
        (
            of.table,
            *(str(of.rows), percent(of.before), percent(of.one)),
            *(percent(share if of.has_five else None) for share in (of.before_five, of.five)),
        )
        for of in users
    ]
    return table_lines(OWN_COLUMNS, cells)


def _levels(found: Sequence[LevelResult]) -> list[str]:
    cells = [
        (
            each.level,
            *(str(count) for count in (each.groups, each.tables, each.rows)),
            percent(each.error),
            percent(each.inside),
            f"{each.width:.2f}",
        )
        for each in found
    ]
    return table_lines(LEVEL_COLUMNS, cells)


def _tables(tables: Sequence[TableResult]) -> list[str]:
    lines = [_table_cells(table) for table in tables]
    means = [
        fmean([getattr(table, name) for table in tables])
        for name in ("left_out_error", "error", "constant_error", "coverage")
    ]
    total = str(sum(len(table.rows) for table in tables))
    left_out, fitted, constant, inside = map(percent, means)
    lines.append(("**mean over tables**", total, f"**{left_out}**", _small(fitted), constant, inside, "", ""))
    return table_lines(COLUMNS, lines)


def _table_cells(table: TableResult) -> tuple[str, ...]:
    rank = table.rank_correlation
    return (
        table.name,
        str(len(table.rows)),
        percent(table.left_out_error),
        _small(percent(table.error)),
        percent(table.constant_error),
        percent(table.coverage),
        percent(table.regret),
        ABSENT if rank is None else f"{rank:.2f}",
    )


def _calibrations(found: Sequence[ReplayedCalibration]) -> list[str]:
    columns = ("table", "rows", "chosen: before %", "after %", "ratio", "random: ratio", "all others: ratio")
    return table_lines(columns, [_calibration_cells(each) for each in found])


def _calibration_cells(each: ReplayedCalibration) -> tuple[str, ...]:
    ratios = (
        each.told_after / each.told_before,
        each.drawn_after / each.drawn_before,
        each.others_after / each.others_before,
    )
    shares = (percent(each.told_before), percent(each.told_after))
    return (each.table, str(each.num_rows), *shares, *(f"{ratio:.2f}" for ratio in ratios))


def _misses(tables: Sequence[TableResult]) -> list[str]:
    missed = [(table, row) for table in tables for row in table.worst(MOST_OF_A_TABLE)]
    missed.sort(key=lambda each: -abs(each[1].without.error))
    return table_lines(MISSES, [_miss_cells(table, row) for table, row in missed[:NUM_MISSES]])


def _miss_cells(table: TableResult, tested: TestedRow) -> tuple[str, ...]:
    return (
        table.name,
        tested.row.compared.row.get("model", ""),
        tested.row.run.setup.label,
        significant(tested.row.seconds, 4),
        significant(tested.without.left_out_s, 4),
        f"{100 * tested.without.error:+.1f}",
        _small(f"{100 * tested.error:+.1f}"),
    )


def _memories(found: Sequence[MemoryResult]) -> list[str]:
    cells = [
        (each.name, str(each.num_figures), percent(each.error), str(each.num_fits), percent(each.fits_right))
        for each in found
    ]
    return table_lines(("table", "figures", "error %", "rows", "fits or not, right %"), cells)


def _unpriced_lines(found: Validation) -> list[str]:
    lines = [f"- {count}: {reason}" for reason, count in found.unpriced.most_common()]
    if found.num_new:
        lines.append(f"- {found.num_new} rows are priced, but were in no fit yet: run `python -m benchmarks.fitting`")
    return lines or ["None."]


def _small(text: str) -> str:
    return f"<sub>{text}</sub>"


if __name__ == "__main__":
    run(sys.argv[1:])
