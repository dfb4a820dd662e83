"""The pipeline's timeline: what the rank of every stage does when, in one step of the best plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from results.report.blocks.pipeline_spans import KINDS, PipelineStep, Span, predicted_step
from results.report.findings.best_plan import BestPlan, best_plan
from results.report.section import Block, NamedTable, Paragraph, Plot, ReportSubject, Section
from results.report.table import ReportTable, number
from results.units import error_percent, percent, rounded, seconds
from train_core.costs import IMPLEMENTATIONS

MOST_STAGES = 16
OF_EACH_END = 4
"""Of pipelines of more than MOST_STAGES, so many of the first and of the last stages are shown."""
MOST_SPANS = 2800
"""Of longer steps the filling and the draining of the pipeline are shown, with half of this number each, which keeps
the page's data below 300 KB."""
ROOM = 1.25
"""How much longer than the pipeline takes to fill a picture of its beginning is."""
MILLI = 1e-3
ROW_HEIGHT = 22
SAME = 1e-4
"""Less than what is shown of a number."""


def section(subject: ReportSubject) -> Section | None:
    """None where no plan fits, or where it runs on several types of devices, whose stages are not listed one by one."""
    best = best_plan(subject)
    if best is None or best.trial.experiment is None or best.trial.experiment.mixed is not None:
        return None
    step = predicted_step(best.trial.experiment, IMPLEMENTATIONS[best.trial.experiment.trainer.costs_of])
    return Section(
        name="timeline",
        title="Timeline of the pipeline",
        numbers_are="predicted",
        finding=_finding(best, step),
        blocks=tuple(_blocks(best, step)),
    )


def _finding(best: BestPlan, step: PipelineStep) -> str:
    waiting = max(range(len(step.spans)), key=lambda stage: step.seconds(stage, "bubble"))
    bubble = step.seconds(waiting, "bubble") / step.total_seconds
    what = f"A step of `{best.label}`, {best.why}, is predicted to take {seconds(step.total_seconds)} s"
    if len(step.spans) == 1:
        return f"{what}; it has no pipeline, so that nothing waits for another stage."
    return (
        f"{what}, of which the pipeline's passes are {seconds(step.pipeline_seconds)} s; stage {waiting} has nothing to"
        f" do for {percent(bubble)} % of the step, more than any other."
    )


def _blocks(best: BestPlan, step: PipelineStep) -> Iterator[Block]:
    yield Paragraph(_how_it_was_made(best, step))
    if _shares_cores(best):
        yield Paragraph(
            "Ranks share cores here, which the picture leaves out: it gives each a device of its own, so that the step"
            " as predicted for this machine takes longer.",
            is_caution=True,
        )
    shown = _shown_stages(len(step.spans))
    spans = [span for stage in shown for span in step.spans[stage]]
    yield from _plots(step, spans, len(shown))
    yield NamedTable("timeline-stages", _table(best, step, shown))


def _how_it_was_made(best: BestPlan, step: PipelineStep) -> str:
    assert best.trial.estimate is not None
    return (
        "Each pass of the trainer's own schedule is laid out as soon as what it needs is there, and takes as long as"
        f" the cost model says. {_beside_the_formula(step.total_seconds, best.trial.estimate.step_seconds)}"
        " Communication that no work hides is drawn at the end of its pass, although a layer's collectives lie inside"
        " it; a backward pass holds the weight gradients where these have no pass of their own. All ranks of a stage do"
        " the same."
    )


def _beside_the_formula(laid_out: float, closed: float) -> str:
    """What the sum of all passes says beside the formula, which is exact for equal stages and approximates others."""
    if math.isclose(laid_out, closed, rel_tol=SAME):
        return f"So laid out the step takes the {seconds(closed)} s that the formula says by which plans are ranked."
    return (
        f"So laid out the step takes {seconds(laid_out)} s; the formula by which plans are ranked, which approximates"
        f" uneven stages, says {seconds(closed)} s, so that the picture is {error_percent(laid_out, closed)} % off it."
    )


def _shares_cores(best: BestPlan) -> bool:
    assert best.trial.experiment is not None
    cluster, world_size = best.trial.experiment.cluster, best.trial.experiment.parallel.world_size
    cores = cluster.cores_per_node or cluster.devices_per_node
    return min(world_size, cluster.devices_per_node) > cores


def _shown_stages(num_stages: int) -> list[int]:
    stages = range(num_stages)
    return list(stages) if num_stages <= MOST_STAGES else [*stages[:OF_EACH_END], *stages[-OF_EACH_END:]]


def _plots(step: PipelineStep, spans: Sequence[Span], num_shown: int) -> Iterator[Plot]:
    """The whole step, or where it has too many passes to be seen its beginning and its end."""
    total, of = step.total_seconds, len(step.spans)
    which = f" The first and the last {OF_EACH_END} of {of} stages." if num_shown < of else ""
    if len(spans) <= MOST_SPANS:
        yield _gantt("timeline", f"One step, predicted.{which}", spans, (0.0, total))
        return
    half = MOST_SPANS // 2
    ends, starts = sorted(span.end for span in spans if span.end <= step.pipeline_seconds), [s.start for s in spans]
    window = min(ROOM * step.filled_seconds, sorted(starts)[half], step.pipeline_seconds - ends[-half])
    yield _gantt("timeline-fill", f"How the pipeline fills, predicted.{which}", spans, (0.0, window))
    # The wait for the slowest device may be longer than all else that the second picture shows.
    last = min(total, max(span.end for span in spans if span.kind in ("communication", "optimizer")) + window / 8)
    drain = f"How the pipeline drains, predicted, and what follows it; the step ends at {seconds(total)} s.{which}"
    yield _gantt("timeline-drain", drain, spans, (step.pipeline_seconds - window, last))


def _gantt(name: str, caption: str, spans: Sequence[Span], window: tuple[float, float]) -> Plot:
    unit, scale = ("s", 1.0) if window[1] >= 1.0 else ("ms", MILLI)
    low, high = (edge / scale for edge in window)
    stages = [_stage_name(stage) for stage in dict.fromkeys(span.stage for span in spans)]
    # Those of the whole step, so that both pictures of a long one give a kind the same colour.
    kinds = [kind for kind in KINDS if any(span.kind == kind for span in spans)]
    x = {
        "type": "quantitative",
        "title": f"{unit} since the step began",
        "scale": {"domain": [low, high], "nice": False},
    }
    return Plot(
        name,
        caption,
        {
            "data": {"values": list(_values(spans, window, scale))},
            "mark": {"type": "bar", "clip": True},
            "encoding": {
                "y": {"field": "stage", "type": "nominal", "sort": stages, "title": None},
                "x": {"field": "from", **x},
                "x2": {"field": "to"},
                "color": {"field": "what", "type": "nominal", "scale": {"domain": kinds}, "title": None},
                # What nobody works in is drawn pale, whatever its colour.
                "opacity": {"condition": {"test": "datum.what === 'bubble'", "value": 0.25}, "value": 1},
                "tooltip": [{"field": field} for field in ("stage", "what", "micro-batch", "chunk", "from", "to")],
            },
            "height": ROW_HEIGHT * len(stages),
        },
    )


def _values(spans: Sequence[Span], window: tuple[float, float], scale: float) -> Iterator[dict[str, Any]]:
    """The spans inside the window, cut at its edges."""
    low, high = window
    for span in spans:
        if span.end <= low or span.start >= high:
            continue
        edges = {"from": rounded(max(span.start, low) / scale, 6), "to": rounded(min(span.end, high) / scale, 6)}
        value = {"stage": _stage_name(span.stage), "what": span.kind, **edges}
        value |= {} if span.micro_batch is None else {"micro-batch": span.micro_batch}
        yield value | ({"chunk": span.chunk} if span.chunk else {})


def _stage_name(stage: int) -> str:
    return f"stage {stage}"


def _table(best: BestPlan, step: PipelineStep, shown: Sequence[int]) -> ReportTable:
    """Seconds of each stage by what its rank does; kinds that no stage has are left out."""
    assert best.trial.experiment is not None
    layers = best.trial.experiment.layers_per_stage
    sums = {stage: {kind: step.seconds(stage, kind) for kind in KINDS} for stage in shown}
    kinds = [kind for kind in KINDS if any(of_stage[kind] for of_stage in sums.values())]
    columns = ("stage", "layers", *(f"{kind} s" for kind in kinds), "bubble %")
    rows = tuple(
        (
            number(str(stage), stage),
            number(str(layers[stage]), layers[stage]),
            *(number(seconds(of_stage[kind]), of_stage[kind]) for kind in kinds),
            number(percent(of_stage["bubble"] / step.total_seconds), of_stage["bubble"]),
        )
        for stage, of_stage in sums.items()
    )
    return ReportTable(columns, rows, frozenset(columns))
