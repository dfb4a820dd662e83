"""The promises on predictions beside what the published rows say: tables, memory, targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.forward import LAST, forward_results
from benchmarks.left_out import CALIBRATED, LEFT_OUT, LeftOutRow, ReplayedCalibration, read_rows
from benchmarks.levels import LEVEL_RESULTS, LevelResult
from benchmarks.published_rows import FRONTIER_SCALING, compared_rows, measured_rows, published_rows, row_sets
from benchmarks.table_results import MemoryResult, TableResult, memory_results, table_results
from benchmarks.target import Target, at_least, at_most, figure, within
from benchmarks.who_measured import OWN_ROWS, ByWho, OwnRows, by_who, forward_rows_of_all, who_targets
from conf.grouped import grouped
from conf.units import TERA
from results.analysis.score import score
from sweeps.table.prices import PricedRow

PERCENT = " %"
LEFT_OUT_LIMITS = {  # percent that the mean error of a table is to stay below, by constants fitted without it
    "vTrain, 64-512 GPUs": 10.0,
    "vTrain, 2-8 GPUs": 8.4,
    "dgxc GPT-3 175B, H100 fp8": 8.0,
    "dgxc Llama 70B (cp), H100 fp8": 8.0,
    "dgxc Nemotron 340B, GB200 fp8": 8.0,
    "MLPerf GPT-3, H100 fp8": 6.0,
    "SimuMax dense, 8 B200": 4.75,
    "SimuMax experts, 8 B200": 6.5,
}
FITTED_LIMITS = {"sc21-table-1": 3.0, "bloom": 4.5}  # the same by constants that were fitted on it too
CALIBRATED_LIMITS = {  # the same after a calibration on five of its rows
    "dgxc GPT-3 175B, H100 bf16": 5.0,
    "dgxc Llama 70B (cp), H100 bf16": 5.0,
}
LARGE_ERROR = 0.05
"""Tables that are closer than this leave a calibration little to gain: what is left is no matter of constants."""
REGRET_LIMITS = {"vTrain, 64-512 GPUs": 3.0, "vTrain, 2-8 GPUs": 3.0}
SCALING_PERCENT = {"175B weak": 100.0, "1T weak": 100.0, "175B strong": 89.9, "1T strong": 87.1}


@dataclass(frozen=True)
class Validation:
    """Everything that is said of predictions.

    Attributes:
        who: what they are off by for users, makers and papers.
        own: what rows of their own bring each of their tables.
        levels: what predictions are off by when more and more is left out, and on rows that were predicted forward.
        unpriced: why rows were not priced, and how many for each reason.
        num_new: measured rows that nobody has left out yet.
    """

    who: tuple[ByWho, ...]
    own: tuple[OwnRows, ...]
    tables: tuple[TableResult, ...]
    levels: tuple[LevelResult, ...]
    memories: tuple[MemoryResult, ...]
    calibrations: tuple[ReplayedCalibration, ...]
    targets: tuple[Target, ...]
    unpriced: Counter[str]
    num_new: int


def validation() -> Validation:
    """All of it, from the rows as they are priced now and from what was left out when constants were fitted last."""
    priced = published_rows()
    rows, left_out = measured_rows(priced), read_rows(LEFT_OUT, LeftOutRow)
    calibrations = tuple(read_rows(CALIBRATED, ReplayedCalibration))
    left_places = {each.place for each in left_out}
    tables, memories = table_results(rows, left_out), memory_results(priced.values())
    sets = grouped(priced.values(), lambda row: row.record.row["set"])
    levels = (*read_rows(LEVEL_RESULTS, LevelResult), *forward_results())
    who, own = tuple(by_who(forward_rows_of_all())), tuple(read_rows(OWN_ROWS, OwnRows))
    targets = [
        *who_targets(who, own),
        *_step_targets(tables),
        *_coverage_targets(levels),
        *_calibration_targets(calibrations),
        *_memory_targets(memories, sets),
        *_frontier_targets(sets["frontier-headline"]),
        _priced_target(priced),
    ]
    return Validation(
        who=who,
        own=own,
        tables=tuple(tables),
        levels=levels,
        memories=tuple(memories),
        calibrations=calibrations,
        targets=tuple(targets),
        unpriced=Counter(row.reason for row in priced.values() if row.prediction is None),
        num_new=sum(row.place not in left_places for row in rows),
    )


def _step_targets(tables: Sequence[TableResult]) -> list[Target]:
    by_name = {table.name: table for table in tables}
    better = sum(table.left_out_error < table.constant_error for table in tables)
    mean = sum(table.left_out_error for table in tables) / len(tables)
    constant = sum(table.constant_error for table in tables) / len(tables)
    remark = f"constant: {100 * constant:.2f}{PERCENT}"
    return [
        at_most("mean over tables, each left out", 6, 100 * mean, PERCENT, remark),
        at_least("tables below their one constant rate", len(tables), better),
        *(_left_out_target(by_name[name], limit) for name, limit in LEFT_OUT_LIMITS.items() if name in by_name),
        *(
            at_most(f"{name}: mean error, fitted", limit, 100 * by_name[name].error, PERCENT)
            for name, limit in FITTED_LIMITS.items()
            if name in by_name
        ),
        *(
            at_most(f"{name}: regret of the best predicted plan", limit, _percent(by_name[name].regret), PERCENT)
            for name, limit in REGRET_LIMITS.items()
            if name in by_name
        ),
    ]


def _coverage_targets(levels: Sequence[LevelResult]) -> list[Target]:
    what = "rows that were predicted forward, in their interval of 80 %, mean over tables"
    then, today = (
        next(100 * each.inside for each in levels if each.level == level)
        for level in (LAST.as_it_happened, LAST.as_of_today)
    )
    remark = f"in today's: {today:.1f}{PERCENT}"
    return [at_least(what, 75, then, PERCENT, remark), at_most(what, 88, then, PERCENT)]


def _left_out_target(table: TableResult, limit: float) -> Target:
    remark = f"fitted: {100 * table.error:.2f}{PERCENT}, constant: {100 * table.constant_error:.2f}{PERCENT}"
    what = f"{table.name}: mean error of {len(table.rows)}, left out"
    return at_most(what, limit, 100 * table.left_out_error, PERCENT, remark)


def _calibration_targets(calibrations: Sequence[ReplayedCalibration]) -> list[Target]:
    by_name = {each.table: each for each in calibrations}
    large = [each for each in calibrations if each.others_before > LARGE_ERROR]
    what = "error on the rest of a table after five runs, over before: median of"
    drawn, others = median_gain(calibrations, "drawn"), median_gain(calibrations, "others")
    remark = "" if drawn is None else f"at random: {drawn:.2f}, all other rows known: {others:.2f}"
    return [
        at_most(f"{what} {len(calibrations)}", 0.5, median_gain(calibrations), remark=remark),
        at_most(f"{what} the {len(large)} off by more than {100 * LARGE_ERROR:g} %", 0.5, median_gain(large)),
        *(
            at_most(f"{name}: mean error after five runs", limit, 100 * by_name[name].drawn_after, PERCENT)
            for name, limit in CALIBRATED_LIMITS.items()
            if name in by_name
        ),
    ]


def median_gain(found: Sequence[ReplayedCalibration], chosen: str = "told") -> float | None:
    """The median over tables of the error after a calibration over that before; None where there are no tables.

    Args:
        chosen: told, drawn or others, as in ReplayedCalibration.
    """
    errors = [(getattr(each, f"{chosen}_before"), getattr(each, f"{chosen}_after")) for each in found]
    return median(after / before for before, after in errors if before > 0) if errors else None


def _memory_targets(memories: Sequence[MemoryResult], sets: Mapping[str, Sequence[PricedRow]]) -> list[Target]:
    figures = sum(each.num_figures for each in memories)
    error = sum((each.error or 0.0) * each.num_figures for each in memories) / max(figures, 1)
    scored = score(compared_rows(row for rows in sets.values() for row in rows))
    b200 = next((each for each in memories if each.name == "SimuMax dense, 8 B200"), None)
    frontier = score(compared_rows(sets["frontier-memory"]))
    return [
        at_most(f"memory: mean error of {figures} figures", 5, 100 * error, PERCENT),
        at_least(f"memory: fits or not, right of {scored.num_fits}", 98, _percent(scored.fits_right), PERCENT),
        at_most("memory: 8 B200, dense", 2, _percent(b200.error if b200 else None), PERCENT),
        at_most("memory: Frontier's 16 stages", 2, _percent(frontier.memory_error), PERCENT),
    ]


def _frontier_targets(headline: Sequence[PricedRow]) -> list[Target]:
    """The rates of three models and their order, and the efficiencies of four curves.

    Their configurations are inferred or assumed.
    """
    curves = row_sets(FRONTIER_SCALING, "curve")
    return [
        *_frontier_rate_targets(headline),
        *(
            within(f"Frontier {name} scaling (assumed batch)", SCALING_PERCENT[name], 3, _efficiency(rows), " %")
            for name, rows in curves.items()
            if name in SCALING_PERCENT
        ),
    ]


def _frontier_rate_targets(headline: Sequence[PricedRow]) -> list[Target]:
    rates = {one.record.row["model"].removeprefix("GPT-"): _rate(one) / TERA for one in headline}
    published = [float(one.record.row["tflops_per_gpu"]) for one in headline]
    order = list(rates.values()) == sorted(rates.values(), reverse=True)
    shown = " > ".join(f"{name} {rate:.1f}" for name, rate in sorted(rates.items(), key=lambda r: -r[1]))
    return [
        *(
            within(f"Frontier {name}: hardware TFLOPS", wanted, 0.05 * wanted, rate)
            for (name, rate), wanted in zip(rates.items(), published, strict=True)
        ),
        Target("Frontier: order of the rates", "22B > 175B > 1T", shown, order, "another order"),
    ]


def _efficiency(rows: Sequence[PricedRow]) -> float:
    """Percent of the baseline's rate per device that the scaled point keeps."""
    # Each curve of frontier_scaling.csv has two rows in this order.
    baseline, scaled = map(_rate, rows)
    return 100 * scaled / baseline


def _rate(row: PricedRow) -> float:
    assert row.prediction is not None, "a row on Frontier cannot be priced"
    return row.prediction.estimate.hardware_flops_per_second_per_device


def _priced_target(priced: dict[str, PricedRow]) -> Target:
    of_today = [row for place, row in priced.items() if place.startswith("published_2")]
    if not of_today:
        return figure("rows of published_2.csv that are priced", None)
    share = sum(row.prediction is not None for row in of_today) / len(of_today)
    return at_least(f"of {len(of_today)} rows of published_2.csv, priced", 98, 100 * share, PERCENT)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
