"""The pipeline's timeline: what the rank of every stage does when in a step of the best plan, and in a measured one."""

from __future__ import annotations

import math
from collections.abc import Iterator

from conf.plan.experiment import Experiment
from conf.units import count_of
from costs import IMPLEMENTATIONS
from costs.step.step_time import ranks_per_core
from results.analysis.findings.ranking import BestPlan, best_plan
from results.render.section import Block, Heading, NamedTable, NumbersAre, Paragraph, ReportSubject, Section
from results.render.table import Table, number, text
from results.render.units import error_percent, percent, seconds
from results.report.pipeline_spans import (
    SPAN_KINDS,
    WAITS,
    DrawnStep,
    PipelineStep,
    devices_of_stages,
    gantt_plots,
    predicted_step,
    stage_names,
    stages_to_draw,
)
from results.report.recorded_spans import RecordedTrial, compared_step, shares_table, uncertainty

SAME = 1e-4
"""Less than what is shown of a number."""
WHAT_IS_WHAT = (
    "Measured, the bubble is waiting for what another stage sends, its travel included, and for the whole job before"
    " the update; communication is all other waiting, in passes and after them; the optimizer includes what goes before"
    " the first pass. Predicted, a transfer between stages counts as communication of the one that sends, and the wait"
    " for the slowest device as bubble."
)


def section(subject: ReportSubject) -> Section | None:
    """Return the section, or None if no plan fits and no trial recorded a step."""
    best, recorded = best_plan(subject), compared_step(subject)
    findings: list[str] = []
    blocks: list[Block] = []
    experiment = best.trial.experiment if best else None
    if best is not None and experiment is not None:
        step = predicted_step(experiment, IMPLEMENTATIONS[experiment.trainer.costs_of])
        # The pictures of a plan that was measured show what is predicted of it already.
        if recorded and best.reading is not None and experiment == recorded.trial.experiment:
            blocks = [*recorded_blocks(*recorded), *_seconds(experiment, step)]
        else:
            findings, blocks = [_finding(best, step)], [*_blocks(best, experiment, step)]
            blocks += [Heading("Measured beside predicted"), *recorded_blocks(*recorded)] if recorded else []
    elif recorded is not None:
        blocks = [*recorded_blocks(*recorded)]
    else:
        return None
    findings += [recorded_finding(*recorded)] if recorded else []
    kind: NumbersAre = "measured and predicted" if recorded else "predicted"
    return Section("timeline", "Timeline of the pipeline", kind, " ".join(findings), tuple(blocks))


def _finding(best: BestPlan, step: PipelineStep) -> str:
    what = f"A step of `{best.label}`, {best.why}, is predicted to take {seconds(step.total_seconds)} s"
    if step.num_stages == 1:
        return f"{what}; it has no pipeline, so that nothing waits for another stage."
    waiting = max(range(step.num_stages), key=lambda stage: step.seconds(stage, "bubble"))
    return (
        f"{what}, of which the pipeline's passes are {seconds(step.pipeline_seconds)} s; stage {waiting} has nothing to"
        f" do for {percent(step.share(waiting, 'bubble'))} % of the step, more than any other."
    )


def _blocks(best: BestPlan, experiment: Experiment, step: PipelineStep) -> Iterator[Block]:
    yield Paragraph(
        "Each pass of the trainer's own schedule is laid out as soon as what it needs is there, and takes as long as"
        f" the cost model says. {_formula_sentence(step.total_seconds, best.trial.predicted.step_seconds)}"
        " Communication that no work hides is drawn at the end of its pass, although a layer's collectives lie inside"
        " it; a backward pass holds the weight gradients where these have no pass of their own. All ranks of a stage do"
        " the same."
    )
    if any(ranks_per_core(block.num_devices, block.cluster) > 1 for block in experiment.blocks):
        yield Paragraph(
            "Ranks share cores here, which the picture leaves out: it gives each a device of its own, so that the step"
            " as predicted for this machine takes longer.",
            is_caution=True,
        )
    yield from gantt_plots("timeline", "predicted", [DrawnStep(step, stage_names(experiment))])
    yield from _seconds(experiment, step)


def _formula_sentence(laid_out: float, closed: float) -> str:
    """Compare the sum of all passes with the formula, which is exact for equal stages and else approximate."""
    if math.isclose(laid_out, closed, rel_tol=SAME):
        return f"So laid out the step takes the {seconds(closed)} s that the formula says by which plans are ranked."
    return (
        f"So laid out the step takes {seconds(laid_out)} s; the formula by which plans are ranked, which approximates"
        f" uneven stages, says {seconds(closed)} s, so that the picture is {error_percent(laid_out, closed)} % off it."
    )


def _seconds(experiment: Experiment, step: PipelineStep) -> Iterator[Block]:
    """Yield each stage's seconds by what its rank does; kinds that no stage has are left out."""
    yield Paragraph("Predicted seconds of each stage's rank in one step:")
    shown, devices = stages_to_draw(step.num_stages), devices_of_stages(experiment)
    kinds = [kind for kind in SPAN_KINDS if any(step.seconds(stage, kind) for stage in shown)]
    layers = experiment.layers_per_stage
    rows = [
        {
            "stage": number(str(stage), stage),
            **({"devices": text(devices[stage])} if experiment.mixed else {}),
            "layers": number(str(layers[stage]), layers[stage]),
            **{f"{kind} s": number(seconds(step.seconds(stage, kind)), step.seconds(stage, kind)) for kind in kinds},
            "bubble %": number(percent(step.share(stage, "bubble")), step.seconds(stage, "bubble")),
        }
        for stage in shown
    ]
    yield NamedTable("timeline-stages", Table.of(rows))


def recorded_finding(trial: RecordedTrial, predicted: PipelineStep, measured: PipelineStep) -> str:
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
    yield Paragraph(WHAT_IS_WHAT)
    if (performance := trial.reading.performance) is not None and trial.reading.shares_devices:
        yield Paragraph(
            f"{trial.experiment.parallel.world_size} ranks took turns on {count_of(performance.num_devices, 'core')}"
            " when this was measured, so that waits of one are the work of another; the prediction gives each rank a"
            " core of its own.",
            is_caution=True,
        )
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


def _cut_note(trial: RecordedTrial) -> str:
    cut = next((stage for stage in trial.stages if stage.is_cut), None)
    if cut is None:
        return ""
    return (
        f" Of the {cut.num_passes} passes of a stage the first and the last {len(cut.passes) // 2} are listed; shares"
        " are of all."
    )
