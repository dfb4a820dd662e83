"""The cost model's predictions for the full-size points: nothing in it was measured."""

from __future__ import annotations

from collections.abc import Sequence

from conf.units import GIBIBYTE, TERA, count_of
from costs import STEP_TERMS
from results.analysis.findings.ranking import by_prediction, predicted_cells
from results.render.charts import MOST_BARS, Spec, bars, category, layer
from results.render.section import Block, NamedTable, Paragraph, Plot, ReportSubject, Section
from results.render.table import Cell, Table, number, text
from results.render.units import count, gib, percent, significant, tflops
from sweeps.labels import distinct_names
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
    record = subject.sweep.record
    if not record.plan:
        return None
    plan = by_prediction(record.plan)
    fitting = [trial for trial in plan if trial.infeasible_reason is None]
    blocks: list[Block] = []
    if fitting:
        rows = [_fitting_row(record, position, trial) for position, trial in enumerate(fitting, start=1)]
        blocks.append(NamedTable("fitting", _table(rows, marked=(0,))))
    if described := _subject(record.plan):
        blocks.append(Paragraph(described, is_note=True))
    if fitting:
        blocks.append(Plot("step-terms", TERMS, step_terms(record)))
    if spec := _memory(record):
        blocks.append(Plot("memory", MEMORY, spec))
    impossible = [
        {"layout": text(_name(record, trial)), "why it cannot exist": text(trial.infeasible_reason or "")}
        for trial in plan
        if trial.estimate is None
    ]
    lacking = [_lacking_row(record, trial) for trial in plan if trial.estimate and trial.infeasible_reason is not None]
    for name, what, others in (("lacking", "do not fit", lacking), ("impossible", "cannot exist", impossible)):
        if others:
            # Where nothing fits, what each point lacks is what the reader is after.
            blocks.append(NamedTable(name, _table(others), f"Points that {what}: {len(others)}" if fitting else ""))
    return Section("predicted", "Predicted on paper", "predicted", _verdict(record, plan, fitting), tuple(blocks))


def _fitting_row(record: SweepRecord, position: int, trial: Trial) -> dict[str, Cell]:
    estimate = trial.predicted
    hardware = estimate.hardware_flops_per_second_per_device
    cells = predicted_cells(trial) | {
        "#": number(str(position), position),
        "layout": text(_name(record, trial)),
        "tokens/s": number(count(estimate.tokens_per_second), estimate.tokens_per_second),
        "hardware TFLOPS": number(tflops(hardware), hardware),
        "worst stage": number(str(estimate.worst_stage), estimate.worst_stage),
    }
    return {name: cells[name] for name in FITTING_COLUMNS}


def _lacking_row(record: SweepRecord, trial: Trial) -> dict[str, Cell]:
    estimate = trial.predicted
    return {
        "layout": text(_name(record, trial)),
        "worst stage": number(str(estimate.worst_stage), estimate.worst_stage),
        "needs GiB": number(gib(estimate.peak_memory_bytes), estimate.peak_memory_bytes),
        "has GiB": number(gib(estimate.memory_capacity_bytes), estimate.memory_capacity_bytes),
        "short GiB": number(gib(estimate.shortfall_bytes), estimate.shortfall_bytes),
    }


def _table(rows: Sequence[dict[str, Cell]], marked: Sequence[int] = ()) -> Table:
    """Without the column of the worst stage where that is the same one for all points."""
    table = Table.of(rows, marked)
    differ = "worst stage" not in table.columns or len(table.texts_of("worst stage")) > 1
    return table if differ else table.only([name for name in table.columns if name != "worst stage"])


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
        f"{experiment.model.name} on {cluster.name}: up to {count_of(cluster.num_devices, 'device')}"
        f" ({cluster.device.name}, {peak} TFLOPS peak, {gib(cluster.device.memory_bytes)} GiB). Large matrix products"
        f" are taken to reach {percent(efficiency.matmul)} % of the peak."
        f" Constants of the prediction: {efficiency.source}."
    )


def _verdict(record: SweepRecord, plan: Sequence[Trial], fitting: Sequence[Trial]) -> str:
    if not fitting:
        return "No full-size point fits; what each one lacks is below."
    counted = f"{len(fitting)} of {count_of(len(plan), 'point', 'fits', 'fit')}, ranked by model TFLOPS per device."
    if len(fitting) < 2:
        return counted
    first, second = (trial.predicted.model_flops_per_second_per_device for trial in fitting[:2])
    behind = f"{percent(1 - second / first)} % behind `{record.plan_label_of(fitting[0])}`"
    return f"{counted} The second, `{record.plan_label_of(fitting[1])}`, is {behind}."


def _name(record: SweepRecord, trial: Trial) -> str:
    return record.plan_label_of(trial) + (" (baseline)" if trial.is_baseline else "")


def step_terms(record: SweepRecord) -> Spec:
    """Stacked bars for the fastest points that fit, per sequence because their batches may differ."""
    shown = [trial for trial in by_prediction(record.plan) if trial.infeasible_reason is None][:MOST_BARS]
    names = distinct_names([record.plan_label_of(trial) for trial in shown])
    values = []
    for name, trial in zip(names, shown, strict=True):
        size, batch = trial.planned.parallel.world_size, trial.planned.batch.global_batch_size
        for order, term in enumerate(STEP_TERMS):
            seconds = getattr(trial.predicted.step_terms, term) * size / batch
            values.append({"layout": name, "term": TERM_NAMES[term], "order": order, "seconds": seconds})
    used = [name for name in TERM_NAMES.values() if any(v["seconds"] for v in values if v["term"] == name)]
    return bars(
        [value for value in values if value["term"] in used],
        "seconds",
        "predicted device-seconds per sequence",
        color=category("term", scale={"domain": used}),
        order={"field": "order", "type": "quantitative"},
    )


def _memory(record: SweepRecord) -> Spec | None:
    """Memory of the worst stage of each point, against what a device has."""
    estimated = [trial for trial in by_prediction(record.plan) if trial.estimate]
    if not estimated:
        return None
    # The fastest points that fit, and those that need only a little more memory than there is.
    parts = ([trial for trial in estimated if (trial.infeasible_reason is None) == fits] for fits in (True, False))
    shown = [trial for part in parts for trial in part[: MOST_BARS // 2]]
    names = distinct_names([record.plan_label_of(trial) for trial in shown])
    values = [
        {"layout": name, "GiB": each.peak_memory_bytes / GIBIBYTE, "point": "fits" if each.fits else "does not fit"}
        for name, each in zip(names, (trial.predicted for trial in shown), strict=True)
    ]
    scale = {"domain": ["fits", "does not fit"], "range": ["var(--good)", "var(--bad)"]}
    spec = bars(values, "GiB", "predicted GiB per device, worst stage", color=category("point", scale=scale))
    capacities = sorted({trial.predicted.memory_capacity_bytes / GIBIBYTE for trial in shown})
    dashed = {"type": "rule", "strokeDash": [6, 4], "strokeWidth": 2, "color": "var(--ink)"}
    x = {"field": "GiB", "type": "quantitative"}
    spec["layer"].append(layer(dashed, [{"GiB": capacity} for capacity in capacities], x=x, y=None))
    return spec
