"""What one MLflow run holds, as plain values that can be compared with what the store holds already."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from results.mlflow.metric_keys import STEP_PREFIX
from train_core.measurement import Outcome

VERSION = "2"
"""Of the keys, tags and artifacts; another number has every run written anew, once."""

DIGITS = 5

MAX_TAG_LENGTH = 4000
"""MLflow promises to take 5,000 bytes, and a letter may need more than one."""

STATUS = {
    None: "SCHEDULED",
    Outcome.PENDING: "SCHEDULED",
    Outcome.RUNNING: "RUNNING",
    Outcome.COMPLETED: "FINISHED",
    Outcome.CANCELLED: "KILLED",
    Outcome.PREEMPTED: "KILLED",
    Outcome.PRUNED: "KILLED",
    Outcome.INFEASIBLE: "KILLED",
}
"""MLflow's status by outcome; any other outcome is FAILED. The tag `outcome` holds the exact one."""


SWEEP = "sweep"
"""The key of a parent, among the runs of its sweep."""


class LoggedMetric(NamedTuple):
    key: str
    value: float
    timestamp_ms: int
    step: int


@dataclass(frozen=True)
class RunContent:
    """Everything that one run holds, but for its artifacts.

    Attributes:
        key: tells the runs of one sweep apart.
        attempt: changes when a trial starts over; its history then belongs to another run.
        end_ms: None while the trial can still change.
        artifacts: changes when the artifacts do.
    """

    key: str
    name: str
    status: str
    start_ms: int
    end_ms: int | None
    attempt: str
    tags: dict[str, str]
    params: dict[str, str]
    metrics: tuple[LoggedMetric, ...]
    artifacts: str = ""

    @property
    def last_step(self) -> int:
        """The last optimizer step on record; 0 before the first."""
        return max((metric.step for metric in self.metrics if metric.key.startswith(STEP_PREFIX)), default=0)

    def metrics_after(self, step: int) -> list[LoggedMetric]:
        """All metrics except those of optimizer steps up to `step`, which the run in the store holds already."""
        return [metric for metric in self.metrics if metric.step > step or not metric.key.startswith(STEP_PREFIX)]

    @property
    def digest(self) -> str:
        """A hash that is equal for two contents exactly when there is nothing to update."""
        head = (VERSION, self.key, self.name, self.status, self.start_ms, self.end_ms, self.attempt, self.artifacts)
        # `repr` writes every bit of a number, and takes a quarter of the time of JSON: thousands are compared.
        whole = repr((head, sorted(self.tags.items()), sorted(self.params.items()), self.metrics))
        return hashlib.sha256(whole.encode()).hexdigest()[:16]


def at(timestamp_ms: int, values: Mapping[str, float]) -> list[LoggedMetric]:
    """The values as metrics of one moment, with as many digits as a column of MLflow's table shows."""
    return [LoggedMetric(key, float(f"{value:.{DIGITS}g}"), timestamp_ms, 0) for key, value in values.items()]


def milliseconds(time_seconds: float) -> int:
    return int(time_seconds * 1000)


def tag(text: str) -> str:
    """Text as long as MLflow takes."""
    return text[:MAX_TAG_LENGTH]
