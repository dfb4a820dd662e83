"""A step as it was measured beside what was predicted of it: pictures on one axis of time, shares in a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conf.experiment import Experiment
from results.report.section import Block, NamedTable, Paragraph
from results.report.table import Cell, ReportTable, number, text
from results.report.timeline.clock_offsets import uncertainty
from results.report.timeline.gantt import DrawnStep, gantt_plots, shown_stages
from results.report.timeline.pipeline_spans import WAITS, WORK, Kind, PipelineStep, predicted_step
from results.report.timeline.recorded_spans import recorded_step
from results.report.timeline.recorded_trial import RecordedTrial, recorded_trial
from results.report.timeline.stage_names import devices_of_stages, stage_names
from results.units import percent, seconds
from sweeps.reading import TrialReading
from train_core.costs import IMPLEMENTATIONS

SHARES: dict[str, tuple[Kind, ...]] = {"busy": WORK, "communication": ("communication",), "bubble": WAITS}
SHARES_CORES = (
    "Ranks share cores here, which the predicted picture leaves out: it gives each a device of its own, so that the"
    " step as predicted for this machine takes longer."
)


@dataclass(frozen=True)
class RecordedBlocks:
    """What a report shows of a recorded step.

    Attributes:
        finding: in one sentence.
    """

    experiment: Experiment
    finding: str
    blocks: tuple[Block, ...]


def recorded_blocks(results: Sequence[TrialReading]) -> RecordedBlocks | None:
    """None where no measured trial recorded a step."""
    trial = recorded_trial(results)
    if trial is None:
        return None
    experiment = trial.experiment
    measured = recorded_step(trial.stages)
    predicted = predicted_step(experiment, IMPLEMENTATIONS[experiment.trainer.costs_of])
    blocks = tuple(_blocks(trial, measured, predicted))
    return RecordedBlocks(experiment, _finding(trial, measured, predicted), blocks)


def _finding(trial: RecordedTrial, measured: PipelineStep, predicted: PipelineStep) -> str:
    step = f"A step of `{trial.reading.label}`"
    took, expected = seconds(trial.stages[0].step_seconds), seconds(predicted.total_seconds)
    if measured.num_stages == 1:
        return f"{step} was measured to take {took} s; no trial with a pipeline recorded its passes."
    waited, expected_to_wait = (percent(step.mean_share(*WAITS)) for step in (measured, predicted))
    return (
        f"{step}, {trial.why}, was measured to take {took} s with a bubble of {waited} %, and predicted to take"
        f" {expected} s with one of {expected_to_wait} %, in the mean over its stages."
    )


def _blocks(trial: RecordedTrial, measured: PipelineStep, predicted: PipelineStep) -> Iterator[Block]:
    yield Paragraph(_what_was_recorded(trial, measured.total_seconds))
    yield Paragraph(_what_is_what())
    if shares_cores(trial.experiment):
        yield Paragraph(SHARES_CORES, is_caution=True)
    drawn = [
        DrawnStep(step, stage_names(trial.experiment, what))
        for step, what in ((predicted, "predicted"), (measured, "measured"))
    ]
    yield from gantt_plots("timeline-measured", "predicted above and measured below", drawn)
    yield NamedTable("timeline-shares", _table(trial.experiment, predicted, measured))


def _what_was_recorded(trial: RecordedTrial, done: float) -> str:
    first, performance = trial.stages[0], trial.reading.performance
    assert performance is not None
    return (
        f"`{trial.reading.label}` is {trial.why}. The first tensor rank of the first replica of every stage noted when"
        f" each pass of step {first.step} began and ended. That step took {seconds(first.step_seconds)} s on the"
        f" slowest rank, {seconds(done)} s on those shown; the median of all timed steps is"
        f" {seconds(performance.step_seconds)} s. {_clocks(trial)}{_cut(trial)}"
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


def _cut(trial: RecordedTrial) -> str:
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


def shares_cores(experiment: Experiment) -> bool:
    """Whether ranks take turns on a core of any type of devices."""
    return any(
        min(block.num_devices, block.cluster.devices_per_node)
        > (block.cluster.cores_per_node or block.cluster.devices_per_node)
        for block in experiment.blocks
    )


def _table(experiment: Experiment, predicted: PipelineStep, measured: PipelineStep) -> ReportTable:
    """Of each stage, and of all, which share of the step its rank works, communicates and waits."""
    of_types = ("devices",) if experiment.mixed else ()
    devices, stages = devices_of_stages(experiment), shown_stages(measured.num_stages)
    rows = [
        (number(str(stage), stage), *(text(devices[stage]) for _ in of_types), text(what), *_shares(step, [stage]))
        for stage in stages
        for what, step in (("predicted", predicted), ("measured", measured))
    ]
    if len(stages) > 1:
        every = range(measured.num_stages)
        rows += [
            (text("all"), *(text("") for _ in of_types), text(what), *_shares(step, every))
            for what, step in (("predicted", predicted), ("measured", measured))
        ]
    shares = tuple(f"{name} %" for name in SHARES)
    return ReportTable(("stage", *of_types, "numbers are", *shares), tuple(rows), frozenset(("stage", *shares)))


def _shares(step: PipelineStep, stages: Sequence[int]) -> Iterator[Cell]:
    """The cells of a stage, or of the mean over several."""
    for kinds in SHARES.values():
        share = sum(step.share(stage, *kinds) for stage in stages) / len(stages)
        yield number(percent(share), share)
