"""The first screen of docs/validation.md: what somebody needs who has to decide whether to believe a prediction."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from math import exp
from statistics import fmean

from benchmarks.forward import FORWARD_TESTS, LAST
from benchmarks.left_out import ReplayedCalibration
from benchmarks.levels import GENERATION, TABLE
from benchmarks.practices import SHARE
from benchmarks.table_results import TableResult, TestedRow
from benchmarks.target import Target
from benchmarks.validation import LARGE_ERROR, Validation, median_gain
from benchmarks.who_measured import ByWho, OwnRows
from results.render.units import percent

CLOSE, FAR = 0.1, 0.15
LINE = 120


def summary(found: Validation) -> list[str]:
    said = (
        _who(found.who),
        _steps(found),
        _far_off(found.tables),
        _intervals(found),
        _choices(found.tables),
        _memory(found.targets),
        _own(found.own),
        _calibrations(found.calibrations),
        NOT_OURS,
    )
    return [textwrap.fill(f"- {each}", LINE, subsequent_indent="  ", break_on_hyphens=False) for each in said if each]


NOT_OURS = (
    "**No row was measured by this project**: all are other people's figures, read off their tables. A plan that lies"
    " outside of what they ran says so, and on which side, wherever its prediction is shown."
)


def by_trainer(tables: Sequence[TableResult]) -> list[tuple[str, ...]]:
    """One line for each trainer: its devices, and how far its tables were off that were left out.

    Tables whose rows are of several trainers count for each.
    """
    names = dict.fromkeys(_trainer(each) for table in tables for each in table.rows)
    return [_trainer_cells(name, tables) for name in sorted(names)]


def _trainer_cells(name: str, tables: Sequence[TableResult]) -> tuple[str, ...]:
    by_table = {table.name: tuple(each for each in table.rows if _trainer(each) == name) for table in tables}
    own = [TableResult(table, rows) for table, rows in by_table.items() if rows]
    worst = max(own, key=lambda table: table.left_out_error)
    devices = {each.row.run.setup.cluster.device.name.split("-")[0] for table in own for each in table.rows}
    return (
        name,
        ", ".join(sorted(devices)),
        str(len(own)),
        str(sum(len(table.rows) for table in own)),
        percent(fmean([table.left_out_error for table in own])),
        f"{percent(worst.left_out_error)} ({worst.name})",
    )


def _trainer(tested: TestedRow) -> str:
    return tested.row.run.implementation.name


def _steps(found: Validation) -> str:
    tables, by_level = found.tables, {each.level: each for each in found.levels}
    errors, constant = [table.left_out_error for table in tables], [table.constant_error for table in tables]
    forward, generation = by_level[LAST.as_it_happened], by_level[GENERATION]
    earlier = " and ".join(
        f"{percent(each.error)} % of {each.rows:,} rows"
        for each in (by_level[test.as_it_happened] for test in FORWARD_TESTS[:-1])
    )
    rows = sum(len(table.rows) for table in tables)
    close = sum(error < CLOSE for error in errors)
    return (
        f"**A step's time is off by {percent(forward.error)} %** on tables that came after the code (forward,"
        f" {forward.rows:,} rows of {forward.tables}; in earlier tests {earlier}), by {percent(generation.error)} %"
        f" where the whole generation of devices was left out, and by {percent(fmean(errors))} %, in the mean over"
        f" {len(tables)} tables ({rows:,} measured steps), where the table and its machines were; by less than"
        f" {100 * CLOSE:g} % in {close} of these. With one rate per device, the best for those very rows, it would be"
        f" {percent(fmean(constant))} %."
    )


def _far_off(tables: Sequence[TableResult]) -> str:
    far = sorted((table for table in tables if table.left_out_error > FAR), key=lambda table: -table.left_out_error)
    named = "; ".join(f"{table.name} ({percent(table.left_out_error)} %)" for table in far)
    return f"**Do not rely on it** for plans like these, which are off by more than {100 * FAR:g} %: {named}." * bool(
        far
    )


def _who(found: Sequence[ByWho]) -> str:
    """The first thing that decides how far to trust a prediction."""
    named = "; ".join(
        f"{each.who} {_times(each.level.low)} to {_times(each.level.high)} times, half within"
        f" {_times(each.level.middle)} (off by {percent(each.error)} %, {each.rows} rows of {each.tables} tables)"
        for each in found
    )
    return f"**Who measured decides how long a step takes**, over what is predicted. Most took of {named}."


def _times(logarithm: float) -> str:
    return f"{exp(logarithm):.2f}"


def _own(found: Sequence[OwnRows]) -> str:
    users = [each for each in found if each.who == "users"]
    five = [each for each in users if each.has_five]
    if not five:
        return ""
    before, one = (percent(fmean(getattr(each, name) for each in users)) for name in ("before", "one"))
    before_five, after = (percent(fmean(getattr(each, name) for each in five)) for name in ("before_five", "five"))
    return (
        f"**One measured step of your own** brings {len(users)} tables of users from {before} % to {one} %; five bring"
        f" the {len(five)} that have as many from {before_five} % to {after} %."
    )


def _intervals(found: Validation) -> str:
    by_level = {each.level: percent(each.inside) for each in found.levels}
    held = ", ".join(f"{percent(each.inside)} % of {each.who}' rows" for each in found.who)
    return (
        f"**Its interval of {100 * SHARE:.0f} %** goes by that, and is wider for small layers. Learned without their"
        f" group of sources it held {held}; {by_level[TABLE]} % where constants were fitted without a table. Earlier"
        f" rules held {by_level[LAST.as_it_happened]} % of the rows that were predicted forward last."
    )


def _choices(tables: Sequence[TableResult]) -> str:
    regrets = [(table.name, table.regret) for table in tables if table.regret is not None]
    named = "; ".join(f"{percent(regret)} % ({name})" for name, regret in regrets)
    return f"**The plan that is predicted fastest** is slower than the best one that was measured by {named}."


def _memory(targets: Sequence[Target]) -> str:
    said = {target.what: target.seen for target in targets if target.what.startswith("memory: ")}
    error = next((seen for what, seen in said.items() if "mean error" in what), "-")
    fits = next((seen for what, seen in said.items() if "fits or not" in what), "-")
    return f"**Memory** is off by {error} in the mean; whether a plan fits is right for {fits} of the rows that tell."


def _calibrations(found: Sequence[ReplayedCalibration]) -> str:
    large = [each for each in found if each.others_before > LARGE_ERROR]
    small = [each for each in found if each.others_before <= LARGE_ERROR]
    if not large or not small:
        return ""
    before, after = (fmean([getattr(each, name) for each in large]) for name in ("told_before", "told_after"))
    told, others = median_gain(small, "told"), median_gain(small, "others")
    return (
        f"**Five runs of your own** (`trisweep calibrate`) bring tables that are off by more than"
        f" {100 * LARGE_ERROR:g} % from {percent(before)} % to {percent(after)} %, in the mean. Where predictions are"
        f" closer they gain little (error after over before: {told:.2f}; {others:.2f} if all other rows were known)."
    )
