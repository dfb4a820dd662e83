"""The plan that a report shows in detail: the best that was measured at full size, else the best on paper."""

from __future__ import annotations

from dataclasses import dataclass

from results.report.findings.ranking import by_prediction
from results.report.section import ReportSubject
from sweeps.reading import TrialReading
from sweeps.repeats.ranking import ranking_of
from sweeps.trial import SweepRecord, Trial


@dataclass(frozen=True)
class BestPlan:
    """The plan that the answer is about.

    Attributes:
        reading: how it was measured; None where it is known on paper alone.
    """

    trial: Trial
    reading: TrialReading | None
    label: str

    @property
    def why(self) -> str:
        """The way in which it was chosen, to stand behind its name."""
        return "measured to be the fastest per device" if self.reading else "predicted to be the fastest per device"


def best_plan(subject: ReportSubject) -> BestPlan | None:
    """Return the best plan; None if no full-size point fits. A proxy's measurement ranks no full-size plan."""
    record = subject.sweep.record
    if record.mode == "cluster":
        for reading in ranking_of(list(subject.results)):
            return BestPlan(reading.trial, reading, reading.label)
    trial = best_on_paper(record)
    return BestPlan(trial, None, record.plan_label_of(trial)) if trial else None


def best_on_paper(record: SweepRecord) -> Trial | None:
    """The best of the points that fit on as many devices as the baseline, or of all, where none of them does.

    Fewer devices are easily faster per device, and are no answer to how to use that many.
    """
    fitting = [trial for trial in by_prediction(record.plan) if trial.infeasible_reason is None and trial.estimate]
    baseline = next((trial for trial in record.plan if trial.is_baseline and trial.experiment), None)
    alike = [trial for trial in fitting if baseline and num_devices(trial) == num_devices(baseline)]
    return next(iter(alike or fitting), None)


def num_devices(trial: Trial) -> int:
    """Return the number of devices that the trial asks for; 0 of one that cannot exist."""
    return trial.experiment.parallel.world_size if trial.experiment else 0


def nearest_plan(subject: ReportSubject) -> BestPlan | None:
    """The plan that lacks least memory, to be shown where none fits."""
    lacking = [trial for trial in subject.sweep.record.plan if trial.estimate]
    if not lacking:
        return None
    least = min(lacking, key=lambda trial: trial.estimate.shortfall_bytes if trial.estimate else 0)
    return BestPlan(least, None, subject.sweep.record.plan_label_of(least))
