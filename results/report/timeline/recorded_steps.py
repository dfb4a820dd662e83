"""A step as it was measured beside what was predicted of it: pictures on one axis of time, shares in a table."""

from __future__ import annotations

from collections.abc import Iterator

from results.report.section import Block, NamedTable, Paragraph
from results.report.timeline.gantt import DrawnStep, gantt_plots, stage_names
from results.report.timeline.pipeline_spans import WAITS, PipelineStep
from results.report.timeline.recorded_spans import uncertainty
from results.report.timeline.stage_shares import RecordedTrial, shares_table
from results.units import percent, seconds


def recorded_finding(trial: RecordedTrial, predicted: PipelineStep, measured: PipelineStep) -> str:
    """Return what a recorded step shows, in one sentence."""
    step = f"A step of `{trial.reading.label}`"
    took, expected = seconds(trial.stages[0].step_seconds), seconds(predicted.total_seconds)
    if measured.num_stages == 1:
        return f"{step} was measured to take {took} s; no trial with a pipeline recorded its passes."
    waited, expected_to_wait = (percent(step.mean_share(*WAITS)) for step in (measured, predicted))
    return (
        f"{step}, {trial.why}, was measured to take {took} s with a bubble of {waited} %, and predicted to take"
        f" {expected} s with one of {expected_to_wait} %, in the mean over its stages."
    )


def recorded_blocks(trial: RecordedTrial, predicted: PipelineStep, measured: PipelineStep) -> Iterator[Block]:
    yield Paragraph(_what_was_recorded(trial, measured.total_seconds))
    yield Paragraph(_what_is_what())
    if (shared := _shared_cores_caution(trial)) is not None:
        yield Paragraph(shared, is_caution=True)
    drawn = [
        DrawnStep(step, stage_names(trial.experiment, what))
        for step, what in ((predicted, "predicted"), (measured, "measured"))
    ]
    yield from gantt_plots("timeline-measured", "predicted above and measured below", drawn)
    yield NamedTable("timeline-shares", shares_table(trial.experiment, predicted, measured))


def _what_was_recorded(trial: RecordedTrial, done: float) -> str:
    first, performance = trial.stages[0], trial.reading.performance
    assert performance is not None
    return (
        f"`{trial.reading.label}` is {trial.why}. The first tensor rank of the first replica of every stage noted when"
        f" each pass of step {first.step} began and ended. That step took {seconds(first.step_seconds)} s on the"
        f" slowest rank, {seconds(done)} s on those shown; the median of all timed steps is"
        f" {seconds(performance.step_seconds)} s. {_clocks(trial)}{_cut_note(trial)}"
    )


def _clocks(trial: RecordedTrial) -> str:
    apart = uncertainty(trial.stages)
    if len({stage.machine for stage in trial.stages}) == 1:
        return "These ranks ran on one machine and have one clock."
    if apart == float("inf"):
        return "Clocks of different machines are aligned where the step begins, and by nothing that was sent since."
    return (
        "Clocks of different machines are aligned where the step begins, and by what stages sent each other, which"
        f" leaves neighbours uncertain by {seconds(apart)} s at most."
    )


def _shared_cores_caution(trial: RecordedTrial) -> str | None:
    """A caution where ranks took turns on the cores of a machine."""
    performance, num_ranks = trial.reading.performance, trial.experiment.parallel.world_size
    if performance is None or not trial.reading.shares_devices:
        return None
    return (
        f"{num_ranks} ranks took turns on {performance.num_devices} cores when this was measured, so that waits of one"
        " are the work of another; the prediction gives each rank a core of its own."
    )


def _cut_note(trial: RecordedTrial) -> str:
    cut = next((stage for stage in trial.stages if stage.is_cut), None)
    if cut is None:
        return ""
    return (
        f" Of the {cut.num_passes} passes of a stage the first and the last {len(cut.passes) // 2} are listed; shares"
        " are of all."
    )


def _what_is_what() -> str:
    return (
        "Measured, the bubble is waiting for what another stage sends, its travel included, and for the whole job"
        " before the update; communication is all other waiting, in passes and after them; the optimizer includes what"
        " goes before the first pass. Predicted, a transfer between stages counts as communication of the one that"
        " sends, and the wait for the slowest device as bubble."
    )
