"""Memory of the best plan: what a rank of every pipeline stage holds, against what its device has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from conf.units import GIBIBYTE
from costs import MEMORY_KINDS, Estimate
from results.analysis.findings.ranking import BestPlan, best_plan, nearest_plan
from results.render.charts import Values, category, dots, layer, tooltip
from results.render.section import Block, NamedTable, NumbersAre, Paragraph, Plot, ReportSubject, Section
from results.render.table import Table, number
from results.render.units import gib, percent, round_to_digits
from sweeps.memory_odds import MemoryOdds

ON_GPU = (
    "Measured is the allocator's maximum on the fullest rank of each stage, which sees neither the framework's memory"
    " nor gaps: hold it against the prediction without reserved."
)
ON_CPU = (
    "Measured is the resident set's maximum on the fullest rank of each stage, which holds Python and torch too: hold"
    " it against the whole prediction."
)
GIBIBYTES = {"type": "quantitative", "title": "GiB of one rank"}
ROW_HEIGHT, MOST_HEIGHT = 34, 640
LINE = "M-0.1,-1L0.1,-1L0.1,1L-0.1,1Z"
"""An upright line as SVG draws it, between -1 and 1."""


def section(subject: ReportSubject) -> Section | None:
    best = best_plan(subject) or nearest_plan(subject)
    if best is None or best.trial.estimate is None:
        return None
    measured = _measured_by_stage(best, len(best.trial.estimate.stages))
    kind: NumbersAre = "measured and predicted" if measured else "predicted"
    finding, blocks = _finding(best, best.trial.estimate, measured), tuple(_blocks(best, best.trial.estimate, measured))
    return Section("memory", "Memory by pipeline stage", kind, finding, blocks)


def _finding(best: BestPlan, predicted: Estimate, measured: Sequence[int]) -> str:
    needs, has = gib(predicted.peak_memory_bytes), gib(predicted.memory_capacity_bytes)
    if not predicted.fits:
        return (
            f"No plan fits; `{best.label}` lacks least: stage {predicted.worst_stage} is predicted to need {needs} GiB"
            f" of the {has} that its device has, {gib(predicted.shortfall_bytes)} too much."
        )
    sentence = (
        f"Stage {predicted.worst_stage} of `{best.label}` is the fullest: predicted {needs} GiB of {has}, or"
        f" {percent(predicted.memory_share)} %"
    )
    odds = MemoryOdds.of(predicted.implementation, best.trial.planned.parallel.world_size)
    tight = f", {odds.in_words(predicted.peak_memory_bytes, predicted.memory_capacity_bytes)}"
    peak = f". Measured, the fullest rank took {gib(max(measured))} GiB" if measured else ""
    return f"{sentence}{tight}{peak}."


def _blocks(best: BestPlan, predicted: Estimate, measured: Sequence[int]) -> Iterator[Block]:
    yield Paragraph(
        "Bytes of one rank at the fullest moment of a step. Working is what the layer at work needs beside what is"
        " kept; reserved is the framework's share, the collectives library's, and gaps."
    )
    if measured:
        yield Paragraph(ON_GPU if best.trial.planned.cluster.device.kind == "gpu" else ON_CPU)
    yield _bars(best, predicted, measured)
    yield NamedTable("memory-stages", _table(best, predicted, measured))


def _measured_by_stage(best: BestPlan, num_stages: int) -> list[int]:
    """Bytes on the fullest rank of each stage; nothing where not every rank's were measured."""
    performance, experiment = best.reading.performance if best.reading else None, best.trial.experiment
    if performance is None or experiment is None or experiment.parallel.pipeline_before_data:
        return []
    peaks = performance.peak_memory_bytes
    if not peaks or len(peaks) != experiment.parallel.world_size:
        return []
    each = len(peaks) // num_stages  # ranks of one stage are consecutive
    return [max(peaks[stage * each : (stage + 1) * each]) for stage in range(num_stages)]


def capacities(best: BestPlan) -> list[int]:
    """Bytes that a device of each stage has; they differ where stages run on several types."""
    return [cluster.device.memory_bytes for cluster in best.trial.planned.clusters_of_stages]


def _bars(best: BestPlan, predicted: Estimate, measured: Sequence[int]) -> Plot:
    kinds = [_kind_words(name) for name in MEMORY_KINDS if any(getattr(stage, name) for stage in predicted.stages)]
    diamonds = " Diamonds are the measured peak of each stage's fullest rank." if measured else ""
    caption = "Predicted GiB of one rank of every stage, stacked by what they hold; the lines are what a device has."
    layers = [
        layer(
            {"type": "bar", "height": {"band": 0.8}},
            list(_bar_values(predicted)),
            x={"field": "GiB", **GIBIBYTES},
            color=category("what", scale={"domain": kinds}),
            order={"field": "order", "type": "quantitative"},
            tooltip=tooltip("stage", "what", "GiB"),
        ),
        _marks(_stage_values("device has", capacities(best)), "device has", LINE, "--ink"),
    ]
    if measured:
        layers.append(_marks(_stage_values("measured peak", measured), "measured peak", "diamond", "--measured"))
    axis = {"labelOverlap": True, "labelExpr": "'stage ' + datum.label"}
    spec = {
        "encoding": {"y": {"field": "stage", "type": "ordinal", "title": None, "axis": axis}},
        "layer": layers,
        "height": min(ROW_HEIGHT * len(predicted.stages), MOST_HEIGHT),
        # Marks of one colour each, so that each has a legend of its own.
        "resolve": {"scale": {"shape": "independent"}},
    }
    return Plot("memory-stages-bars", caption + diamonds, spec)


def _marks(values: Values, name: str, shape: str, colour: str) -> dict[str, Any]:
    """A mark at each stage, which is explained in the legend."""
    paint, size = f"var({colour})", 400 if shape == LINE else 90
    legend = {"symbolFillColor": paint, "symbolStrokeColor": paint, "symbolSize": 90}
    named = {"datum": name, "type": "nominal", "title": None, "scale": {"range": [shape]}, "legend": legend}
    mark, x = dots(size, color=paint, opacity=1), {"field": name, **GIBIBYTES}
    return layer(mark, values, x=x, shape=named, tooltip=tooltip("stage", name))


def _stage_values(name: str, sizes: Sequence[int]) -> list[dict[str, Any]]:
    return [{"stage": stage, name: _gibibytes(size)} for stage, size in enumerate(sizes)]


def _bar_values(predicted: Estimate) -> Iterator[dict[str, Any]]:
    for number_of_stage, stage in enumerate(predicted.stages):
        for order, name in enumerate(MEMORY_KINDS):
            if size := getattr(stage, name):
                yield {"stage": number_of_stage, "what": _kind_words(name), "GiB": _gibibytes(size), "order": order}


def _table(best: BestPlan, predicted: Estimate, measured: Sequence[int]) -> Table:
    kinds = [name for name in MEMORY_KINDS if any(getattr(stage, name) for stage in predicted.stages)]
    rows = []
    for index, (stage, capacity) in enumerate(zip(predicted.stages, capacities(best), strict=True)):
        sizes = {_kind_words(name): getattr(stage, name) for name in kinds}
        sizes |= {"predicted": stage.total_bytes, "device": capacity}
        share = stage.total_bytes / capacity
        row = {"stage": number(str(index), index)}
        row |= {f"{name} GiB": number(gib(size), size) for name, size in sizes.items()}
        row["full %"] = number(percent(share), share)
        if measured:
            row["measured GiB"] = number(gib(measured[index]), measured[index])
        rows.append(row)
    return Table.of(rows, marked=(predicted.worst_stage,))


def _kind_words(kind: str) -> str:
    return kind.removesuffix("_bytes")


def _gibibytes(num_bytes: int) -> float:
    return round_to_digits(num_bytes / GIBIBYTE, 4)
