"""The content of one MLflow run, as plain values that can be compared with what the store holds already."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from conf.credentials import HIDDEN
from costs import estimate
from results.mlflow.metric_keys import QUANTITIES
from sweeps.folder.submission import Submission
from sweeps.reading import Reading, TrialReading
from sweeps.trial import SweepFolder
from train_core.trial.logs import tail
from train_core.trial.measurement import Outcome

if TYPE_CHECKING:
    from mlflow import MlflowClient

VERSION = "2"
"""The version of the keys, tags and artifacts; another number has every run written anew, once."""

FORMAT = repr((VERSION, QUANTITIES["step"], QUANTITIES["system"]))
"""The version of the metrics that are made of the lines of steps; another format has every run brought up to date."""

DIGITS = 5

MAX_TAG_LENGTH, MAX_PARAM_LENGTH = 4000, 6000
"""MLflow promises to take 5,000 bytes of a tag, and a letter may need more than one. Of a parameter it keeps so many
letters, and one that comes back shorter than it was sent would count as changed."""

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

SWEEP_ID, KEY, DIGEST = "trisweep.sweep_id", "trisweep.key", "trisweep.digest"
"""Tags of a run: which sweep or training it is of, which part of it, and what it holds."""

ATTEMPT, LAST_STEP, PARENT = "trisweep.attempt", "trisweep.last_step", "mlflow.parentRunId"
ORDER = "ranked_by"
"""The tag of a parent by which its trials stand in order, as `search_runs` takes it: a column, and ASC or DESC."""
LEFT = "left"
"""The digest of a run that measured something, and whose point the sweep no longer has."""

REPORTS: tuple[Literal["html", "md", "csv"], ...] = ("html", "md", "csv")
EXPORTED = re.compile(r"^(export (?!PYTHON)\w+=)(?:'[^']*'|\"[^\"]*\"|[^\s'\"])*", re.MULTILINE)
"""The value that a job's script gives a variable, quoted for a shell; PYTHONPATH and its like are of this package."""

MAX_RECORD_BYTES = 20_000_000
"""Beyond this the sweep's record, which is in its folder, is not copied: a browser would not show it."""


class LoggedMetric(NamedTuple):
    key: str
    value: float
    timestamp_ms: int
    step: int


@dataclass(frozen=True)
class StepHistory:
    """The metrics of optimizer steps. They are made only where they are to be written: mostly nothing is new."""

    lines: bytes = b""
    make: Callable[[], Sequence[LoggedMetric]] = tuple

    @cached_property
    def metrics(self) -> Sequence[LoggedMetric]:
        return self.make()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.lines).hexdigest()


@dataclass(frozen=True)
class RunContent:
    """The content of one run, but for its artifacts.

    Attributes:
        key: tells the runs of one sweep apart.
        attempt: changes when a trial starts over; its history then belongs to another run.
        end_ms: None while the trial can still change.
        metrics: all but those of optimizer steps.
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
    steps: StepHistory = StepHistory()
    artifacts: str = ""

    @property
    def last_step(self) -> int:
        """The last optimizer step on record; 0 before the first."""
        return max((metric.step for metric in self.steps.metrics), default=0)

    @property
    def metric_keys(self) -> set[str]:
        return {metric.key for metric in (*self.metrics, *self.steps.metrics)}

    def metrics_after(self, step: int) -> list[LoggedMetric]:
        """All metrics except those of optimizer steps up to `step`, which the run in the store holds already."""
        return [*self.metrics, *(metric for metric in self.steps.metrics if metric.step > step)]

    @property
    def digest(self) -> str:
        """A hash that is equal for two contents exactly when there is nothing to update."""
        head = (FORMAT, self.key, self.name, self.status, self.start_ms, self.end_ms, self.attempt, self.artifacts)
        # `repr` writes every bit of a number, and takes a quarter of the time of JSON: thousands are compared. That of
        # a plain tuple takes a quarter of a named one's.
        metrics = [tuple(metric) for metric in self.metrics]
        whole = repr((head, sorted(self.tags.items()), sorted(self.params.items()), metrics, self.steps.digest))
        return hashlib.sha256(whole.encode()).hexdigest()[:16]


def at(timestamp_ms: int, values: Mapping[str, float]) -> list[LoggedMetric]:
    """The values as metrics of one moment, with as many digits as a column of MLflow's table shows."""
    return [LoggedMetric(key, float(f"{value:.{DIGITS}g}"), timestamp_ms, 0) for key, value in values.items()]


def milliseconds(time_seconds: float) -> int:
    return int(time_seconds * 1000)


def tag(text: str) -> str:
    return text[:MAX_TAG_LENGTH]


def param(value: object) -> str:
    return str(value)[:MAX_PARAM_LENGTH]


def report_digest(folder: SweepFolder) -> str:
    """Changes when one of the report's files does; empty before there is a report."""
    reports = [folder.report(suffix) for suffix in REPORTS if folder.report(suffix).exists()]
    content = b"".join(hashlib.sha256(path.read_bytes()).digest() for path in reports)
    return hashlib.sha256(content).hexdigest()[:16] if reports else ""


def log_sweep_files(client: MlflowClient, run_id: str, folder: SweepFolder) -> None:
    """The report, which opens on the run's page, and the record of what the sweep measures."""
    paths = [folder.report(suffix) for suffix in REPORTS]
    if folder.record.stat().st_size <= MAX_RECORD_BYTES:
        paths.append(folder.record)
    for path in paths:
        if path.exists():
            client.log_artifact(run_id, str(path))


def log_trial_files(client: MlflowClient, run_id: str, reading: Reading) -> None:
    """The resolved configuration, the prediction, the measurement, the end of the log, and what sbatch was given."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in _trial_files(reading).items():
            (Path(folder) / name).write_text(text)
        client.log_artifacts(run_id, folder)


def _trial_files(reading: Reading) -> Mapping[str, str]:
    files: dict[str, str] = {}
    if reading.experiment is not None:
        # What another program finds in its environment may be a password.
        files["config.json"] = reading.experiment.model_dump_json(indent=1, exclude={"trainer": {"environment"}})
    if reading.experiment is not None and not reading.experiment.trainer.is_script:
        predicted = reading.trial.estimate if isinstance(reading, TrialReading) else None
        files["estimate.json"] = (predicted or estimate(reading.experiment)).model_dump_json(indent=1)
    if reading.measurement is not None:
        files["measurement.json"] = reading.measurement.model_dump_json(indent=1)
    if reading.log is not None and (end := tail(reading.log).strip()):
        files["log_tail.txt"] = end + "\n"
    if reading.submission is not None and (script := _sbatch_text(reading.submission)):
        files["sbatch.sh"] = script
    return files


def _sbatch_text(submission: Submission) -> str:
    """Return the script that sbatch was given, without the values of its variables; empty for a job of this machine."""
    if submission.executor != "slurm" or submission.job_id is None:
        return ""
    array = submission.job_id.split("_")[0].split(".")[0]
    script = Path(submission.output).parent / f"{array}_submission.sh"
    try:
        return EXPORTED.sub(rf"\1{HIDDEN}", script.read_text(errors="replace"))
    except OSError:
        return ""
