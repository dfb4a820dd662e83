"""Which trial's recorded passes a report shows: the fastest measured one that has a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conf.experiment import Experiment
from sweeps.reading import TrialReading, ranked
from train_core.stage_timeline import StageTimeline


@dataclass(frozen=True)
class RecordedTrial:
    """A measured trial whose ranks left when their passes ran.

    Attributes:
        stages: first to last.
        is_fastest: no trial was measured to be faster per device.
    """

    reading: TrialReading
    stages: Sequence[StageTimeline]
    is_fastest: bool

    @property
    def experiment(self) -> Experiment:
        assert self.reading.experiment is not None
        return self.reading.experiment

    @property
    def why(self) -> str:
        """How it was chosen, to stand behind its name."""
        if len(self.stages) == 1:
            return "the fastest of those that recorded a step, of which none has a pipeline"
        return "the fastest trial" if self.is_fastest else "the fastest trial with a pipeline"


def recorded_trial(results: Sequence[TrialReading]) -> RecordedTrial | None:
    """None where no measured trial has a record, as of other programs than this trainer and of older folders."""
    best_first = ranked(list(results))
    # Those with a pipeline come first; the sort keeps the order of each half.
    for reading in sorted(best_first, key=lambda reading: _num_stages(reading) == 1):
        stages = reading.folder.read_timeline()
        if stages and len(stages) == _num_stages(reading):
            return RecordedTrial(reading, stages, is_fastest=reading is best_first[0])
    return None


def _num_stages(reading: TrialReading) -> int:
    assert reading.experiment is not None
    return reading.experiment.parallel.pipeline_parallel_size
