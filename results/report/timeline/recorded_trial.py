"""Which trial's recorded passes a report shows: the fastest measured one that has a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conf.experiment import Experiment
from results.report.section import ReportSubject
from sweeps.reading import TrialReading, ranked
from train_core.stage_timeline import StageTimeline


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
        assert self.reading.experiment is not None
        return self.reading.experiment

    @property
    def why(self) -> str:
        """How it was chosen, to stand behind its name."""
        if len(self.stages) == 1:
            return f"the fastest trial{self.of} that recorded a step; none of them has a pipeline"
        return f"the fastest trial{self.of}{'' if self.is_fastest else ' with a pipeline'}"


def recorded_trial(subject: ReportSubject) -> RecordedTrial | None:
    """None where no measured trial has a record, as of other programs than this trainer and of older folders."""
    best_first = ranked(list(subject.results))
    of = " of the proxy" if subject.sweep.record.mode == "proxy" else ""
    # Those with a pipeline come first; the sort keeps the order of each half.
    for reading in sorted(best_first, key=lambda reading: _num_stages(reading) == 1):
        stages = reading.folder.read_timeline()
        if stages and len(stages) == _num_stages(reading):
            return RecordedTrial(reading, stages, reading is best_first[0], of)
    return None


def _num_stages(reading: TrialReading) -> int:
    assert reading.experiment is not None
    return reading.experiment.parallel.pipeline_parallel_size
