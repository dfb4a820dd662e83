"""One step of a pipeline in time, rank after rank of one pipeline group: what each does when, as predicted.

Steps are drawn here too, also recorded ones: a named row for each stage, in it a bar for whatever its rank does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from conf.plan.experiment import Experiment
from conf.units import MILLI
from costs import Implementation
from costs.pass_seconds import PassSeconds, StageTimes, stage_times
from results.render.charts import tooltip
from results.render.section import Plot
from results.render.units import round_to_digits, seconds
from train_core.parallel.schedules import Action, actions_of

Kind = Literal["forward", "backward", "weight gradient", "communication", "optimizer", "slowest device", "bubble"]
WORK: tuple[Kind, ...] = ("forward", "backward", "weight gradient", "optimizer")
WAITS: tuple[Kind, ...] = ("bubble", "slowest device")
SPAN_KINDS: tuple[Kind, ...] = get_args(Kind)
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
LEAST_SHARE = 1e-6
"""A share of the step: spans that are shorter come from rounding."""


class StageSpan(NamedTuple):
    """The thing that one rank does from one second of the step to another.

    Attributes:
        micro_batch: the one that is worked on; None after the pipeline.
    """

    stage: int
    kind: Kind
    start: float
    end: float
    micro_batch: int | None = None
    chunk: int = 0


@dataclass(frozen=True)
class PipelineStep:
    """A step of one rank of every stage.

    Attributes:
        spans: for each stage, what its rank does, first to last.
        sums: for each stage, how long its rank does a kind of thing, over the whole step.
        filled_seconds: until the first stage has its first gradient, when the pipeline is full.
        pipeline_seconds: until the last backward pass.
        unlisted: from when to when the spans of a recorded step have gaps, because it had too many to be written down.
    """

    spans: tuple[tuple[StageSpan, ...], ...]
    sums: tuple[Mapping[Kind, float], ...]
    filled_seconds: float
    pipeline_seconds: float
    unlisted: tuple[float, float] | None = None

    @property
    def num_stages(self) -> int:
        return len(self.spans)

    @property
    def total_seconds(self) -> float:
        return max(of_stage[-1].end for of_stage in self.spans)

    def seconds(self, stage: int, kind: Kind) -> float:
        return self.sums[stage].get(kind, 0.0)

    def share(self, stage: int, *kinds: Kind) -> float:
        """The part of the step in which the rank of a stage does things of these kinds."""
        return sum(self.seconds(stage, kind) for kind in kinds) / self.total_seconds

    def mean_share(self, *kinds: Kind) -> float:
        """The same part over the ranks of all stages."""
        return sum(self.share(stage, *kinds) for stage in range(self.num_stages)) / self.num_stages


def predicted_step(experiment: Experiment, implementation: Implementation) -> PipelineStep:
    """The passes of the schedule that the trainer runs, each as long as the cost model says, and what follows them."""
    stages = stage_times(experiment, implementation)
    is_split = experiment.parallel.schedule == "zero-bubble"

    def seconds_of(stage: int, action: Action) -> float:
        return sum(_parts(stages[stage].chunks[action.chunk], action, is_split))

    timed = action_times([actions_of(experiment, stage) for stage in range(len(stages))], seconds_of)
    ends = [of_stage[-1].end for of_stage in timed]
    # All ranks add up the norm of the gradients before they update, so none begins before the last one has reduced.
    reduced = max(end + stage.reduction for end, stage in zip(ends, stages, strict=True))
    updated = reduced + max(stage.update for stage in stages)
    total = updated + stages[0].slowest_device
    spans = tuple(
        tuple(_fill_with_bubbles(_spans_of(stage, of_stage, stages[stage], is_split, reduced, updated), stage, total))
        for stage, of_stage in enumerate(timed)
    )
    first_gradient = next(entry.end for entry in timed[0] if entry.action.kind == "backward")
    return PipelineStep(spans, tuple(map(_sums, spans)), first_gradient, max(ends))


class TimedAction(NamedTuple):
    """One action of a stage, in seconds since the first stage began."""

    action: Action
    start: float
    end: float


def action_times(
    actions: Sequence[Sequence[Action]], seconds_of: Callable[[int, Action], float]
) -> list[list[TimedAction]]:
    """The actions of all stages in time.

    Args:
        actions: those of each stage, in the order in which it runs them.
        seconds_of: how long a stage takes for an action, what it sends at its end included.
    """
    num_stages, num_chunks = len(actions), 1 + max((action.chunk for action in actions[0]), default=0)
    ended: dict[tuple[int, Action], float] = {}
    timed: list[list[TimedAction]] = [[] for _ in actions]
    while any(len(done) < len(listed) for done, listed in zip(timed, actions, strict=True)):
        before = len(ended)
        for stage, listed in enumerate(actions):
            _advance(stage, listed, timed[stage], ended, seconds_of, (num_stages, num_chunks))
        assert len(ended) > before, "the stages wait for each other"
    return timed


def _advance(
    stage: int,
    listed: Sequence[Action],
    done: list[TimedAction],
    ended: dict[tuple[int, Action], float],
    seconds_of: Callable[[int, Action], float],
    sizes: tuple[int, int],
) -> None:
    """Let one stage go on until it needs what is not there yet."""
    free = done[-1].end if done else 0.0
    # By its number, because slices of a long list would be copied each time that the stage goes on.
    for number in range(len(done), len(listed)):
        action = listed[number]
        needed = _source_of(stage, action, *sizes)
        if needed is None:
            start = free
        elif needed in ended:
            start = max(free, ended[needed])
        else:
            return
        free = start + seconds_of(stage, action)
        ended[stage, action] = free
        done.append(TimedAction(action, start, free))


def _source_of(stage: int, action: Action, num_stages: int, num_chunks: int) -> tuple[int, Action] | None:
    """The stage and action whose output an action takes; None where it takes token ids."""
    if action.kind == "weight":
        # Weight gradients are made of what their own backward pass has noted.
        return stage, action._replace(kind="backward")
    if action.kind == "forward":
        if stage > 0:
            return stage - 1, action
        # A chunk begins where the last stage has ended the one before, and a gradient goes the other way round.
        return (num_stages - 1, action._replace(chunk=action.chunk - 1)) if action.chunk > 0 else None
    if stage < num_stages - 1:
        return stage + 1, action
    if action.chunk < num_chunks - 1:
        return 0, action._replace(chunk=action.chunk + 1)
    # The last part of the model computes the loss at its forward pass's end, where backward starts.
    return stage, action._replace(kind="forward")


def _sums(spans: Sequence[StageSpan]) -> dict[Kind, float]:
    seconds: dict[Kind, float] = defaultdict(float)
    for span in spans:
        seconds[span.kind] += span.end - span.start
    return dict(seconds)


def _parts(seconds: PassSeconds, action: Action, is_split: bool) -> tuple[float, float]:
    """Work of an action, and the communication that is drawn at its end."""
    match action.kind:
        case "forward":
            return seconds.forward, seconds.forward_communication
        case "weight":
            return seconds.weight_gradient, 0.0
        case _:
            deferred = 0.0 if is_split else seconds.weight_gradient
            return seconds.input_gradient + deferred, seconds.backward_communication


def _spans_of(
    stage: int, timed: Sequence[TimedAction], times: StageTimes, is_split: bool, reduced: float, updated: float
) -> Iterator[StageSpan]:
    for action, start, end in timed:
        kind: Kind = "weight gradient" if action.kind == "weight" else action.kind
        between = end - _parts(times.chunks[action.chunk], action, is_split)[1]
        yield StageSpan(stage, kind, start, between, action.micro_batch, action.chunk)
        yield StageSpan(stage, "communication", between, end, action.micro_batch, action.chunk)
    last = timed[-1].end
    yield StageSpan(stage, "communication", last, last + times.reduction)
    yield StageSpan(stage, "optimizer", reduced, reduced + times.update)
    yield StageSpan(stage, "slowest device", updated, updated + times.slowest_device)


def _fill_with_bubbles(spans: Iterator[StageSpan], stage: int, total: float) -> Iterator[StageSpan]:
    """The spans that last, with a bubble wherever the rank has nothing to do."""
    at, least = 0.0, LEAST_SHARE * total
    for span in spans:
        if span.end - span.start <= least:
            continue
        if span.start - at > least:
            yield StageSpan(stage, "bubble", at, span.start)
        yield span
        at = span.end
    if total - at > least:
        yield StageSpan(stage, "bubble", at, total)


class DrawnStep(NamedTuple):
    """A step with what is written at each of its rows, for all of its stages."""

    step: PipelineStep
    labels: Sequence[str]

    @property
    def stages(self) -> list[int]:
        return stages_to_draw(self.step.num_stages)

    @property
    def spans(self) -> list[StageSpan]:
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
    """The whole of every step on one axis of time, or where that is too much to be seen its beginning and its end."""
    of = drawn[0].step.num_stages
    which = f" The first and the last {OF_EACH_END} of {of} stages." if of > MOST_STAGES else ""
    if all(each.step.unlisted is None for each in drawn) and sum(len(each.spans) for each in drawn) <= MOST_SPANS:
        window = Window(0.0, max(each.step.total_seconds for each in drawn))
        yield _gantt(name, f"One step, {what}.{which}", drawn, [window] * len(drawn), "since the step began")
        return
    length = min(
        max(ROOM * each.step.filled_seconds for each in drawn), *(_longest_window(each, len(drawn)) for each in drawn)
    )
    fill = [Window(0.0, length)] * len(drawn)
    yield _gantt(f"{name}-fill", f"How the pipeline fills, {what}.{which}", drawn, fill, "since the step began")
    after = max(_seconds_after_passes(each, length) for each in drawn)
    ends = [each.step.pipeline_seconds for each in drawn]
    drain = [Window(end - length, end + after, origin=end) for end in ends]
    totals = " and ".join(f"{seconds(each.step.total_seconds)} s" for each in drawn)
    caption = f"How the pipeline drains, {what}, and what follows it; the step takes {totals}.{which}"
    yield _gantt(f"{name}-drain", caption, drawn, drain, "since the last backward pass ended")


def _longest_window(each: DrawnStep, num_drawn: int) -> float:
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
    axis, colours = {"ticks": False, "domain": False}, {"domain": kinds, "range": [COLOURS[kind] for kind in kinds]}
    values = [value for each, window in zip(drawn, windows, strict=True) for value in _values(each, window, scale)]
    return Plot(
        name,
        caption,
        {
            "data": {"values": values},
            "mark": {"type": "bar", "clip": True},
            "encoding": {
                "y": {"field": "stage", "type": "nominal", "scale": {"domain": rows}, "title": None, "axis": axis},
                "x": {"field": "from", **x},
                "x2": {"field": "to"},
                "color": {"field": "what", "type": "nominal", "scale": colours, "title": None},
                "tooltip": tooltip("stage", "what", "micro-batch", "chunk", "from", "to"),
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
