"""Recorded steps that are MADE UP: every pass takes as long as it is told to, and waits for its input."""

from __future__ import annotations

from collections.abc import Sequence

from results.report.pipeline_spans import action_times
from sweeps.sweep import Sweep
from train_core.parallel.schedules import Action, one_forward_one_backward
from train_core.trial.timeline import RecordedPass, RecordedWait, StageSeconds, StageTimeline

FORWARD, BACKWARD, UPDATE = 1.0, 2.0, 0.5
WAITED_IN_PASS = 0.25
"""For ranks of the tensor axis, in every pass."""


def made_up_stages(num_stages: int, num_micro_batches: int, machines: Sequence[str] = ()) -> list[StageTimeline]:
    """1F1B with passes of 1 s and 2 s, then all wait for the last one, and update."""
    actions = [one_forward_one_backward(num_stages, stage, num_micro_batches) for stage in range(num_stages)]
    timed = action_times(actions, _seconds_of)
    reduced = max(of_stage[-1].end for of_stage in timed)
    stages = []
    for stage, of_stage in enumerate(timed):
        passes, at = list[RecordedPass](), 0.0
        for action, start, end in of_stage:
            # As the trainer notes it, a pass begins when the one before it has ended, and waits for its input first.
            passes.append(RecordedPass(*action, at, end, start, start - at, WAITED_IN_PASS))
            at = end
        after = (RecordedWait("world", at, reduced),)
        stages.append(_stage(stage, num_stages, passes, after, machines[stage] if machines else "here"))
    return stages


def _seconds_of(stage: int, action: Action) -> float:
    return FORWARD if action.kind == "forward" else BACKWARD


def _stage(
    stage: int, num_stages: int, passes: list[RecordedPass], after: tuple[RecordedWait, ...], machine: str
) -> StageTimeline:
    (world,) = after
    forward = sum(each.kind == "forward" for each in passes)
    return StageTimeline(
        stage=stage,
        num_stages=num_stages,
        rank=stage,
        step=4,
        step_seconds=world.end + UPDATE,
        machine=machine,
        began_at=100.0,
        num_passes=len(passes),
        passes=tuple(passes),
        after=after,
        ended=world.end + UPDATE,
        seconds=StageSeconds(
            forward=forward * (FORWARD - WAITED_IN_PASS),
            backward=(len(passes) - forward) * (BACKWARD - WAITED_IN_PASS),
            weight_gradient=0.0,
            communication=len(passes) * WAITED_IN_PASS,
            optimizer=UPDATE,
            bubble=sum(each.input_wait for each in passes) + world.end - world.start,
        ),
    )


def cut(stage: StageTimeline, most: int) -> StageTimeline:
    """As it is written where it has more passes than may be listed."""
    return stage.model_copy(update={"passes": (*stage.passes[: most // 2], *stage.passes[-(most // 2) :])})


def leave(sweep: Sweep, trial_id: str, stages: Sequence[StageTimeline]) -> None:
    """Put a recorded step into a trial's folder."""
    for stage in stages:
        sweep.folder.trial(trial_id).write_timeline(stage)
