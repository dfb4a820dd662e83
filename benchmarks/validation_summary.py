"""The first screen of docs/validation.md: what somebody needs who has to decide whether to believe a prediction."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from math import expm1
from statistics import fmean

from benchmarks.fitting.learned import SHARE
from benchmarks.forward import FORWARD_TESTS, LAST
from benchmarks.left_out import ReplayedCalibration
from benchmarks.levels import GENERATION, TABLE, LevelResult
from benchmarks.table_results import TableResult, TestedRow
from benchmarks.target import Target
from benchmarks.validation import LARGE_ERROR, Validation, median_gain
from results.render.units import percent
from sweeps.confidence import load_validated

CLOSE, FAR = 0.1, 0.15
LINE = 120


def summary(found: Validation) -> list[str]:
    said = (
        _steps(found),
        _far_off(found.tables),
        _intervals(found.levels),
        _choices(found.tables),
        _memory(found.targets),
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


def _intervals(levels: Sequence[LevelResult]) -> str:
    low, high = (f"{abs(100 * expm1(end)):.0f} %" for end in (-load_validated().half, load_validated().half))
    by_level = {each.level: percent(each.inside) for each in levels}
    earlier = " and ".join(f"{by_level[test.as_of_today]} %" for test in FORWARD_TESTS[:-1])
    return (
        f"**Its interval of {100 * SHARE:.0f} %** reaches from {low} below a prediction to {high} above, further for"
        " small layers and for a device, a trainer or a kind of plan that fewer than two sources have measured. It"
        f" held {by_level[LAST.as_it_happened]} % of the rows that were predicted forward last, as it was then. As it"
        f" is now it holds {by_level[LAST.as_of_today]} % of these, {earlier} of those of earlier tests, and"
        f" {by_level[TABLE]} % where the table alone was left out."
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
