"""The cost model's predictions for the full-size points: nothing in it was measured."""

from __future__ import annotations

from collections.abc import Sequence

from conf.units import GIBIBYTE
from results.report.blocks.charts import MOST_BARS, Spec, bars, category, distinct_names
from results.report.blocks.plan_tables import predicted_part
from results.report.findings.predictions import by_prediction
from results.report.section import Block, NamedTable, Paragraph, Plot, ReportSubject, Section
from results.table import Table
from sweeps.trial import SweepRecord, Trial
from train_core.costs import STEP_TERMS, Estimate

TERM_NAMES = {
    "compute_seconds": "compute",
    "tensor_seconds": "tensor parallel",
    "pipeline_seconds": "pipeline sends",
    "bubble_seconds": "bubble",
    "data_seconds": "data parallel",
    "optimizer_seconds": "optimizer",
    "waiting_seconds": "slowest device",
}
TERMS = (
    "Where the predicted step goes, fastest per device first: seconds of a device for each sequence, so that batches"
    " and numbers of devices compare."
)
MEMORY = (
    "Predicted memory of the worst pipeline stage: the fastest points that fit, and those that miss by least. The"
    " dashed line is what a device has."
)


def section(subject: ReportSubject) -> Section | None:
    """Return the section, or None if the sweep has no points on paper."""
    record = subject.sweep.record
    if not record.plan:
        return None
    part = predicted_part(record)
    blocks: list[Block] = [NamedTable("fitting", part.fitting)] if part.fitting else []
    if part.subject:
        blocks.append(Paragraph(part.subject, is_note=True))
    if part.fitting:
        blocks.append(Plot("step-terms", TERMS, step_terms(record)))
    if spec := _memory(record):
        blocks.append(Plot("memory", MEMORY, spec))
    # Where nothing fits, what each point lacks is what the reader is after.
    if part.lacking:
        blocks.append(
            NamedTable("lacking", part.lacking, _fold_line(part.lacking, "do not fit") if part.fitting else "")
        )
    if part.impossible:
        blocks.append(
            NamedTable(
                "impossible", part.impossible, _fold_line(part.impossible, "cannot exist") if part.fitting else ""
            )
        )
    return Section("predicted", "Predicted on paper", "predicted", part.verdict, tuple(blocks))


def _fold_line(table: Table, what: str) -> str:
    """The line that opens the table of points of which that is true."""
    return f"Points that {what}: {len(table.rows)}"


def step_terms(record: SweepRecord) -> Spec:
    """Stacked bars for the fastest points that fit, per sequence because their batches may differ."""
    shown = [trial for trial in by_prediction(record.plan) if trial.infeasible_reason is None][:MOST_BARS]
    names = distinct_names([record.plan_label_of(trial) for trial in shown])
    values = [
        {"layout": name, "term": TERM_NAMES[term], "order": order, "seconds": _per_sequence(trial, term)}
        for name, trial in zip(names, shown, strict=True)
        for order, term in enumerate(STEP_TERMS)
    ]
    used = [name for name in TERM_NAMES.values() if any(v["seconds"] for v in values if v["term"] == name)]
    return bars(
        [value for value in values if value["term"] in used],
        "seconds",
        "predicted device-seconds per sequence",
        color=category("term", scale={"domain": used}),
        order={"field": "order", "type": "quantitative"},
    )


def _per_sequence(trial: Trial, term: str) -> float:
    """Seconds of the term on all devices together, for each sequence."""
    seconds: float = getattr(trial.predicted.step_terms, term)
    return seconds * trial.planned.parallel.world_size / trial.planned.batch.global_batch_size


def _memory(record: SweepRecord) -> Spec | None:
    """Memory of the worst stage of each point, against what a device has."""
    shown = [(trial, trial.estimate) for trial in _trials_near_limit(by_prediction(record.plan)) if trial.estimate]
    if not shown:
        return None
    names = distinct_names([record.plan_label_of(trial) for trial, _ in shown])
    values = [
        {
            "layout": name,
            "GiB": estimate.peak_memory_bytes / GIBIBYTE,
            "point": "fits" if estimate.fits else "does not fit",
        }
        for name, (_, estimate) in zip(names, shown, strict=True)
    ]
    scale = {"domain": ["fits", "does not fit"], "range": ["var(--good)", "var(--bad)"]}
    spec = bars(values, "GiB", "predicted GiB per device, worst stage", color=category("point", scale=scale))
    spec["layer"].append(_capacities([estimate for _, estimate in shown]))
    return spec


def _capacities(estimates: Sequence[Estimate]) -> Spec:
    capacities = sorted({estimate.memory_capacity_bytes / GIBIBYTE for estimate in estimates})
    return {
        "data": {"values": [{"GiB": capacity} for capacity in capacities]},
        "mark": {"type": "rule", "strokeDash": [6, 4], "strokeWidth": 2, "color": "var(--ink)"},
        "encoding": {"x": {"field": "GiB", "type": "quantitative"}, "y": None},
    }


def _trials_near_limit(best_first: Sequence[Trial]) -> list[Trial]:
    """The fastest points that fit, and those that need only a little more memory than there is."""
    estimated = [trial for trial in best_first if trial.estimate]
    fitting = [trial for trial in estimated if trial.infeasible_reason is None]
    lacking = [trial for trial in estimated if trial.infeasible_reason is not None]
    return fitting[: MOST_BARS // 2] + lacking[: MOST_BARS // 2]
