"""One step of a pipeline in time, as the ranks that ran it recorded it, with the clocks of its stages brought together.

Ranks of one machine have one clock. Those of several begin a step when a collective of the whole job is over, and are
taken to begin it together, but for what could then not be true: that something arrived before it was sent.

    stage 0   F0 sent at 5 |                  |    the end of F0's wait on stage 1 is not before 5, and
    stage 1                | F0 here at 5.1   |    the end of B0's wait on stage 0 is not before B0's end on stage 1
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from conf.plan.experiment import Experiment
from costs import IMPLEMENTATIONS
from results.render.section import ReportSubject
from results.render.table import Cell, Table, number, text
from results.render.units import percent
from results.report.pipeline_spans import (
    WAITS,
    WORK,
    Kind,
    PipelineStep,
    StageSpan,
    devices_of_stages,
    predicted_step,
    stages_to_draw,
)
from sweeps.ranking.points import ranking_of
from sweeps.reading import TrialReading
from train_core.trial.timeline import PassKind, StageTimeline

KIND: dict[str, Kind] = {"forward": "forward", "backward": "backward", "weight": "weight gradient"}
WORLD = "world"
"""The axis on which every rank waits for all others before its update."""

SHARES: dict[str, tuple[Kind, ...]] = {"busy": WORK, "communication": ("communication",), "bubble": WAITS}


def recorded_step(stages: Sequence[StageTimeline]) -> PipelineStep:
    """The step in seconds since the first of its stages began it."""
    late = offsets(stages)
    total = max(offset + stage.ended for offset, stage in zip(late, stages, strict=True))
    listed = zip(stages, late, strict=True)
    first_gradient = next((each.end for each in stages[0].passes if each.kind == "backward"), stages[0].ended)
    return PipelineStep(
        spans=tuple(
            tuple(span for span in _spans_of(stage, offset, total) if span.end > span.start) for stage, offset in listed
        ),
        sums=tuple(_sums(stage, total) for stage in stages),
        filled_seconds=late[0] + first_gradient,
        pipeline_seconds=max(offset + stage.passes[-1].end for stage, offset in zip(stages, late, strict=True)),
        unlisted=_unlisted_range(stages, late),
    )


def _sums(stage: StageTimeline, total: float) -> dict[Kind, float]:
    """Sum the seconds over all passes, also those not listed; a stage that is done early waits for the others."""
    of = stage.seconds
    return {
        "forward": of.forward,
        "backward": of.backward,
        "weight gradient": of.weight_gradient,
        "communication": of.communication,
        "optimizer": of.optimizer,
        "bubble": of.bubble + total - stage.ended,
    }


def _spans_of(stage: StageTimeline, offset: float, total: float) -> Iterator[StageSpan]:
    yield StageSpan(stage.stage, "bubble", 0.0, offset)
    # Gradients are set to zero before the first pass.
    yield StageSpan(stage.stage, "optimizer", offset, offset + stage.passes[0].start)
    for each in stage.passes:  # the wait for its input, its work, and at its end all other waits, which lie inside it
        start, end, named = offset + each.start, offset + each.end, (each.micro_batch, each.chunk)
        arrived, worked = start + each.input_wait, end - each.communication
        yield StageSpan(stage.stage, "bubble", start, arrived)
        yield StageSpan(stage.stage, KIND[each.kind], arrived, worked, *named)
        yield StageSpan(stage.stage, "communication", worked, end, *named)
    yield from _spans_after_passes(stage, offset)
    yield StageSpan(stage.stage, "bubble", offset + stage.ended, total)


def _spans_after_passes(stage: StageTimeline, offset: float) -> Iterator[StageSpan]:
    at = stage.passes[-1].end
    for line, start, end in stage.after:
        yield StageSpan(stage.stage, "optimizer", offset + at, offset + start)
        yield StageSpan(stage.stage, "bubble" if line == WORLD else "communication", offset + start, offset + end)
        at = end
    yield StageSpan(stage.stage, "optimizer", offset + at, offset + stage.ended)


def _unlisted_range(stages: Sequence[StageTimeline], late: Sequence[float]) -> tuple[float, float] | None:
    """Return the seconds between which passes of some stage are not listed."""
    cut = [(stage, offset) for stage, offset in zip(stages, late, strict=True) if stage.is_cut]
    if not cut:
        return None
    first = min(offset + stage.passes[len(stage.passes) // 2 - 1].end for stage, offset in cut)
    return first, max(offset + stage.passes[len(stage.passes) // 2].start for stage, offset in cut)


def offsets(stages: Sequence[StageTimeline]) -> list[float]:
    """Return, for each stage, how many seconds after the earliest one it began the step."""
    late = [0.0]
    for before, after in pairwise(stages):
        delay = after.began_at - before.began_at
        if before.machine != after.machine:
            low, high = _bounds(before, after)
            # Where the bounds contradict each other, because marks are not exact, the middle is as good as any other.
            delay = (low + high) / 2 if low > high else min(max(0.0, low), high)
        late.append(late[-1] + delay)
    return [offset - min(late) for offset in late]


def uncertainty(stages: Sequence[StageTimeline]) -> float:
    """Seconds by which two neighbouring stages may be misplaced against each other; infinite where nothing was sent."""
    apart = [_bounds(before, after) for before, after in pairwise(stages) if before.machine != after.machine]
    return max((abs(high - low) / 2 for low, high in apart), default=0.0)


def _bounds(before: StageTimeline, after: StageTimeline) -> tuple[float, float]:
    """The least and the most by which `after` can have begun later, so that nothing arrives before it is sent."""
    return _earliest(before, after, "forward"), -_earliest(after, before, "backward")


def _earliest(sender: StageTimeline, receiver: StageTimeline, kind: PassKind) -> float:
    """Return by how much the receiver's clock has to be put forward at least, for what passes of this kind send."""
    sent = {(each.micro_batch, each.chunk): each.end for each in sender.passes if each.kind == kind}
    arrived = {(each.micro_batch, each.chunk): each.arrived for each in receiver.passes if each.kind == kind}
    return max((sent[name] - arrived[name] for name in sent.keys() & arrived.keys()), default=-math.inf)


class ComparedStep(NamedTuple):
    """A step that was recorded, and what is predicted of it."""

    trial: RecordedTrial
    predicted: PipelineStep
    measured: PipelineStep


def compared_step(subject: ReportSubject) -> ComparedStep | None:
    """Return the recorded step beside its prediction; None if no measured trial recorded one."""
    trial = recorded_trial(subject)
    if trial is None:
        return None
    implementation = IMPLEMENTATIONS[trial.experiment.trainer.costs_of]
    return ComparedStep(trial, predicted_step(trial.experiment, implementation), recorded_step(trial.stages))


def shares_table(experiment: Experiment, predicted: PipelineStep, measured: PipelineStep) -> Table:
    """Tabulate the shares in percent, of each stage that is shown, and of all in the mean."""
    devices, shown = devices_of_stages(experiment), stages_to_draw(measured.num_stages)
    groups: list[tuple[Cell, str, Sequence[int]]] = [(number(str(each), each), devices[each], [each]) for each in shown]
    if len(shown) > 1:
        groups.append((text("all"), "", range(measured.num_stages)))
    rows = [
        {
            "stage": stage,
            **({"devices": text(of)} if experiment.mixed else {}),
            "numbers are": text(what),
            **{f"{name} %": _share_cell(step, stages, kinds) for name, kinds in SHARES.items()},
        }
        for stage, of, stages in groups
        for what, step in (("predicted", predicted), ("measured", measured))
    ]
    return Table.of(rows)


def _share_cell(step: PipelineStep, stages: Sequence[int], kinds: Sequence[Kind]) -> Cell:
    """The share of a stage, or the mean over several."""
    share = sum(step.share(stage, *kinds) for stage in stages) / len(stages)
    return number(percent(share), share)


def shares_rows(subject: ReportSubject) -> list[dict[str, object]]:
    """The shares of every stage as numbers, a row for each kind of number; empty where no step was recorded."""
    compared = compared_step(subject)
    if compared is None:
        return []
    trial_id, devices = compared.trial.reading.trial.trial_id, devices_of_stages(compared.trial.experiment)
    return [
        {"stage_of_trial": trial_id, "stage_number": stage, "stage_devices": devices[stage], "stage_numbers_are": what}
        | {f"stage_{name}_share": step.share(stage, *kinds) for name, kinds in SHARES.items()}
        for stage in range(compared.measured.num_stages)
        for what, step in (("predicted", compared.predicted), ("measured", compared.measured))
    ]


@dataclass(frozen=True)
class RecordedTrial:
    """A measured trial whose ranks left when their passes ran; `of` is empty where it is of the model in question."""

    reading: TrialReading
    stages: Sequence[StageTimeline]
    is_fastest: bool
    of: str

    @property
    def experiment(self) -> Experiment:
        return self.reading.planned

    @property
    def why(self) -> str:
        """The way in which it was chosen, to stand behind its name."""
        if len(self.stages) == 1:
            return f"the fastest trial{self.of} that recorded a step; none of them has a pipeline"
        return f"the fastest trial{self.of}{'' if self.is_fastest else ' with a pipeline'}"


def recorded_trial(subject: ReportSubject) -> RecordedTrial | None:
    """Return the fastest trial with a recorded step, best with a pipeline; other programs and old folders have none."""
    best_first = ranking_of(subject.results)
    of = " of the proxy" if subject.sweep.record.mode == "proxy" else ""
    # Those with a pipeline come first; the sort keeps the order of each half.
    for reading in sorted(best_first, key=lambda reading: _num_stages(reading) == 1):
        stages = reading.folder.read_timeline()
        if stages and len(stages) == _num_stages(reading):
            return RecordedTrial(reading, stages, reading is best_first[0], of)
    return None


def _num_stages(reading: TrialReading) -> int:
    return reading.planned.parallel.pipeline_parallel_size
