"""The cost model's predictions for the full-size points, and how far they are off where points were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conf.units import TERA
from results.report.findings.predictions import by_prediction, predicted_cells
from results.table import Cell, Table, number, text
from results.units import count, gib, percent, significant, tflops
from sweeps.trial import SweepRecord, Trial

FITTING_COLUMNS = (
    "#",
    "layout",
    "devices",
    "step s",
    "tokens/s",
    "model TFLOPS",
    "hardware TFLOPS",
    "MFU %",
    "worst stage",
    "peak GiB",
)
LACKING_COLUMNS = ("layout", "worst stage", "needs GiB", "has GiB", "short GiB")
IMPOSSIBLE_COLUMNS = ("layout", "why it cannot exist")


@dataclass(frozen=True)
class PredictedPart:
    """The content of the second part, which holds predictions.

    Attributes:
        subject: the model and the cluster; empty when no point can exist.
    """

    subject: str
    verdict: str
    fitting: Table | None
    lacking: Table | None
    impossible: Table | None


def predicted_part(record: SweepRecord) -> PredictedPart:
    """The plan of this sweep, ranked."""
    plan = by_prediction(record.plan)
    fitting = [trial for trial in plan if trial.infeasible_reason is None]
    lacking = [trial for trial in plan if trial.estimate and trial.infeasible_reason is not None]
    return PredictedPart(
        subject=_subject(record.plan),
        verdict=_verdict(record, plan, fitting),
        fitting=_fitting_table(record, fitting),
        lacking=_lacking_table(record, lacking),
        impossible=_impossible_table(record, [trial for trial in plan if trial.estimate is None]),
    )


def _subject(plan: Sequence[Trial]) -> str:
    experiment = next((trial.experiment for trial in plan if trial.experiment), None)
    if experiment is None:
        return ""
    cluster, peak = experiment.cluster, significant(experiment.peak_flops_per_second / TERA, 4)
    if experiment.mixed:
        sources = "; ".join(dict.fromkeys(block.cluster.efficiency.source for block in experiment.mixed))
        of = f"{experiment.model.name} on {experiment.place}, in the order of the pipeline ({peak} TFLOPS mean peak)"
        return f"{of}. Constants of the prediction: {sources}."
    efficiency = cluster.efficiency
    return (
        f"{experiment.model.name} on {cluster.name}: up to {cluster.num_devices:,} devices ({cluster.device.name},"
        f" {peak} TFLOPS peak, {gib(cluster.device.memory_bytes)} GiB). Large matrix products are taken to"
        f" reach {percent(efficiency.matmul)} % of the peak. Constants of the prediction: {efficiency.source}."
    )


def _verdict(record: SweepRecord, plan: Sequence[Trial], fitting: Sequence[Trial]) -> str:
    if not plan:
        return "This sweep has no full-size points."
    if not fitting:
        return "No full-size point fits; what each one lacks is below."
    counted = f"{len(fitting)} of {len(plan)} points fit, ranked by model TFLOPS per device."
    if len(fitting) < 2:
        return counted
    first, second = (trial.predicted.model_flops_per_second_per_device for trial in fitting[:2])
    behind = f"{percent(1 - second / first)} % behind `{record.plan_label_of(fitting[0])}`"
    return f"{counted} The second, `{record.plan_label_of(fitting[1])}`, is {behind}."


def _name(record: SweepRecord, trial: Trial) -> str:
    return record.plan_label_of(trial) + (" (baseline)" if trial.is_baseline else "")


def _fitting_table(record: SweepRecord, fitting: Sequence[Trial]) -> Table | None:
    rows = [_fitting_row(record, position, trial) for position, trial in enumerate(fitting, start=1)]
    numeric = frozenset(FITTING_COLUMNS) - {"layout"}
    table = Table(FITTING_COLUMNS, tuple(rows), numeric, frozenset({0}))
    return _drop_equal_stages(table) if rows else None


def _drop_equal_stages(table: Table) -> Table:
    """Without the column of the worst stage where that is the same one for all points."""
    differ = len(table.texts_of("worst stage")) > 1
    return table if differ else table.only([name for name in table.columns if name != "worst stage"])


def _fitting_row(record: SweepRecord, position: int, trial: Trial) -> tuple[Cell, ...]:
    estimate = trial.predicted
    hardware = estimate.hardware_flops_per_second_per_device
    cells = predicted_cells(trial) | {
        "#": number(str(position), position),
        "layout": text(_name(record, trial)),
        "tokens/s": number(count(estimate.tokens_per_second), estimate.tokens_per_second),
        "hardware TFLOPS": number(tflops(hardware), hardware),
        "worst stage": number(str(estimate.worst_stage), estimate.worst_stage),
    }
    return tuple(cells[name] for name in FITTING_COLUMNS)


def _lacking_table(record: SweepRecord, lacking: Sequence[Trial]) -> Table | None:
    rows = [
        (
            text(_name(record, trial)),
            number(str(estimate.worst_stage), estimate.worst_stage),
            number(gib(estimate.peak_memory_bytes), estimate.peak_memory_bytes),
            number(gib(estimate.memory_capacity_bytes), estimate.memory_capacity_bytes),
            number(gib(estimate.shortfall_bytes), estimate.shortfall_bytes),
        )
        for trial in lacking
        for estimate in [trial.predicted]  # gives the estimate a name in here
    ]
    table = Table(LACKING_COLUMNS, tuple(rows), frozenset(LACKING_COLUMNS) - {"layout"})
    return _drop_equal_stages(table) if rows else None


def _impossible_table(record: SweepRecord, impossible: Sequence[Trial]) -> Table | None:
    rows = [(text(_name(record, trial)), text(trial.infeasible_reason or "")) for trial in impossible]
    return Table(IMPOSSIBLE_COLUMNS, tuple(rows), frozenset()) if rows else None
