"""The recorded trial that a report shows, and the shares of its step that each stage works, communicates and waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from conf.plan.experiment import Experiment
from results.report.section import ReportSubject
from results.report.timeline.gantt import devices_of_stages, stages_to_draw
from results.report.timeline.pipeline_spans import WAITS, WORK, Kind, PipelineStep, predicted_step
from results.report.timeline.recorded_spans import recorded_step
from results.table import Cell, Table, number, text
from results.units import percent
from sweeps.reading import TrialReading
from sweeps.repeats.ranking import ranking_of
from train_core.costs import IMPLEMENTATIONS
from train_core.stage_timeline import StageTimeline

SHARES: dict[str, tuple[Kind, ...]] = {"busy": WORK, "communication": ("communication",), "bubble": WAITS}


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
    of_types = ("devices",) if experiment.mixed else ()
    devices, stages = devices_of_stages(experiment), stages_to_draw(measured.num_stages)
    rows = [
        (number(str(stage), stage), *(text(devices[stage]) for _ in of_types), text(what), *_cells(step, [stage]))
        for stage in stages
        for what, step in (("predicted", predicted), ("measured", measured))
    ]
    if len(stages) > 1:
        every = range(measured.num_stages)
        rows += [
            (text("all"), *(text("") for _ in of_types), text(what), *_cells(step, every))
            for what, step in (("predicted", predicted), ("measured", measured))
        ]
    shares = tuple(f"{name} %" for name in SHARES)
    return Table(("stage", *of_types, "numbers are", *shares), tuple(rows), frozenset(("stage", *shares)))


def _cells(step: PipelineStep, stages: Sequence[int]) -> Iterator[Cell]:
    """The cells of a stage, or of the mean over several."""
    for kinds in SHARES.values():
        share = sum(step.share(stage, *kinds) for stage in stages) / len(stages)
        yield number(percent(share), share)


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
    """A measured trial whose ranks left when their passes ran.

    Attributes:
        stages: first to last.
        is_fastest: no trial was measured to be faster per device.
        of: what the trials are of, where that is not the model that the sweep asks about.
    """

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
    best_first = ranking_of(list(subject.results))
    of = " of the proxy" if subject.sweep.record.mode == "proxy" else ""
    # Those with a pipeline come first; the sort keeps the order of each half.
    for reading in sorted(best_first, key=lambda reading: _num_stages(reading) == 1):
        stages = reading.folder.read_timeline()
        if stages and len(stages) == _num_stages(reading):
            return RecordedTrial(reading, stages, reading is best_first[0], of)
    return None


def _num_stages(reading: TrialReading) -> int:
    return reading.planned.parallel.pipeline_parallel_size
