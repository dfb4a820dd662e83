"""Steps of a pipeline as pictures: a named row for each stage, in it a bar for whatever its rank does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from conf.plan.experiment import Experiment
from conf.units import MILLI
from results.report.section import Plot
from results.report.timeline.pipeline_spans import SPAN_KINDS, Kind, PipelineStep, StageSpan
from results.units import round_to_digits, seconds

MOST_STAGES = 16
OF_EACH_END = 4
"""A picture of more stages than MOST_STAGES shows so many of the first and of the last."""
MOST_SPANS = 2800
"""A picture of a longer step shows the filling and the draining of the pipeline, with half of this number each: so the
page's data stay below 300 KB."""
ROOM = 1.25
"""A picture of the pipeline's beginning lasts so many times as long as the pipeline takes to fill."""
ROW_HEIGHT = 22
COLOURS: dict[Kind, str] = {
    "forward": "var(--c1)",
    "backward": "var(--c2)",
    "weight gradient": "var(--c3)",
    "communication": "var(--c4)",
    "optimizer": "var(--c7)",
    "slowest device": "var(--c8)",
    "bubble": "var(--line)",
}
"""The same in every picture; what nobody works in is pale."""


class DrawnStep(NamedTuple):
    """A step with what is written at each of its rows, for all of its stages."""

    step: PipelineStep
    labels: Sequence[str]

    @property
    def stages(self) -> list[int]:
        return stages_to_draw(self.step.num_stages)

    @property
    def spans(self) -> list[StageSpan]:
        """The spans of the stages that are shown."""
        return [span for stage in self.stages for span in self.step.spans[stage]]


class Window(NamedTuple):
    """The seconds of a step that a picture shows, and which of them its axis counts from."""

    start: float
    end: float
    origin: float = 0.0


def stages_to_draw(num_stages: int) -> list[int]:
    stages = range(num_stages)
    return list(stages) if num_stages <= MOST_STAGES else [*stages[:OF_EACH_END], *stages[-OF_EACH_END:]]


def gantt_plots(name: str, what: str, drawn: Sequence[DrawnStep]) -> Iterator[Plot]:
    """The whole of every step, or where that has too many passes to be seen its beginning and its end.

    Args:
        what: what kind of numbers the pictures show, such as `predicted`.
        drawn: steps that share the pictures, one below the other on one axis of time.
    """
    of = drawn[0].step.num_stages
    which = f" The first and the last {OF_EACH_END} of {of} stages." if of > MOST_STAGES else ""
    if all(each.step.unlisted is None for each in drawn) and sum(len(each.spans) for each in drawn) <= MOST_SPANS:
        window = Window(0.0, max(each.step.total_seconds for each in drawn))
        yield _gantt(name, f"One step, {what}.{which}", drawn, [window] * len(drawn), "since the step began")
        return
    length = min(max(ROOM * each.step.filled_seconds for each in drawn), *(_most(each, len(drawn)) for each in drawn))
    fill = [Window(0.0, length)] * len(drawn)
    yield _gantt(f"{name}-fill", f"How the pipeline fills, {what}.{which}", drawn, fill, "since the step began")
    after = max(_seconds_after_passes(each, length) for each in drawn)
    ends = [each.step.pipeline_seconds for each in drawn]
    drain = [Window(end - length, end + after, origin=end) for end in ends]
    totals = " and ".join(f"{seconds(each.step.total_seconds)} s" for each in drawn)
    caption = f"How the pipeline drains, {what}, and what follows it; the step takes {totals}.{which}"
    yield _gantt(f"{name}-drain", caption, drawn, drain, "since the last backward pass ended")


def _most(each: DrawnStep, num_drawn: int) -> float:
    """Return the seconds, of the beginning and of the end, whose spans are listed and not too many to draw."""
    half, passes_end = MOST_SPANS // 2 // num_drawn, each.step.pipeline_seconds
    starts = sorted(span.start for span in each.spans)
    ends = sorted(span.end for span in each.spans if span.end <= passes_end)
    by_number = starts[min(half, len(starts) - 1)], passes_end - ends[-min(half, len(ends))]
    if each.step.unlisted is None:
        return min(by_number)
    first, last = each.step.unlisted
    return min(*by_number, first, passes_end - last)


def _seconds_after_passes(each: DrawnStep, length: float) -> float:
    """Seconds after the last pass that are shown; the wait for the slowest device may be longer than all else."""
    step = each.step
    last = max(span.end for span in each.spans if span.kind in ("communication", "optimizer"))
    return min(step.total_seconds, last + length / 8) - step.pipeline_seconds


def _gantt(name: str, caption: str, drawn: Sequence[DrawnStep], windows: Sequence[Window], since: str) -> Plot:
    low, high = (edge - windows[0].origin for edge in windows[0][:2])
    unit, scale = ("s", 1.0) if high - low >= 1.0 else ("ms", MILLI)
    # A row without a name keeps the steps apart.
    rows = [
        row
        for number, each in enumerate(drawn)
        for row in ([" " * number] * (number > 0) + [each.labels[stage] for stage in each.stages])
    ]
    kinds = [kind for kind in SPAN_KINDS if any(span.kind == kind for each in drawn for span in each.spans)]
    x = {
        "type": "quantitative",
        "title": f"{unit} {since}",
        "scale": {"domain": [low / scale, high / scale], "nice": False},
    }
    values = [value for each, window in zip(drawn, windows, strict=True) for value in _values(each, window, scale)]
    return Plot(
        name,
        caption,
        {
            "data": {"values": values},
            "mark": {"type": "bar", "clip": True},
            "encoding": {
                "y": {
                    "field": "stage",
                    "type": "nominal",
                    "scale": {"domain": rows},
                    "title": None,
                    "axis": {"ticks": False, "domain": False},
                },
                "x": {"field": "from", **x},
                "x2": {"field": "to"},
                "color": {
                    "field": "what",
                    "type": "nominal",
                    "scale": {"domain": kinds, "range": [COLOURS[kind] for kind in kinds]},
                    "title": None,
                },
                "tooltip": [{"field": field} for field in ("stage", "what", "micro-batch", "chunk", "from", "to")],
            },
            "height": ROW_HEIGHT * len(rows),
        },
    )


def _values(each: DrawnStep, window: Window, scale: float) -> Iterator[dict[str, Any]]:
    """The spans inside the window, cut at its edges."""
    low, high, origin = window
    for span in each.spans:
        if span.end <= low or span.start >= high:
            continue
        edges = (max(span.start, low) - origin, min(span.end, high) - origin)
        value: dict[str, Any] = {"stage": each.labels[span.stage], "what": span.kind}
        value |= {name: round_to_digits(edge / scale, 6) for name, edge in zip(("from", "to"), edges, strict=True)}
        value |= {} if span.micro_batch is None else {"micro-batch": span.micro_batch}
        yield value | ({"chunk": span.chunk} if span.chunk else {})


def devices_of_stages(experiment: Experiment) -> list[str]:
    """The cluster on whose devices each stage runs, first to last."""
    return [cluster.name for cluster in experiment.clusters_of_stages]


def stage_names(experiment: Experiment, what: str = "") -> list[str]:
    """`stage 3`, and behind it the devices of a mixed job, and what kind of numbers its row has."""
    devices = devices_of_stages(experiment) if experiment.mixed else [""] * len(experiment.layers_per_stage)
    return [", ".join(filter(None, (f"stage {stage}", of, what))) for stage, of in enumerate(devices)]
