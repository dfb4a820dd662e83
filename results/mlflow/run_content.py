"""What the MLflow run of a sweep, and of each of its trials, contains: a pure function of what is on disk."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from conf.experiment import Experiment
from results.trial_rows import ESTIMATE_FIELDS, PERFORMANCE_FIELDS
from sweeps.reading import Reading, TrialReading, ranked
from sweeps.trial import SweepRecord
from train_core.costs import Estimate, estimate
from train_core.measurement import Outcome, Performance, StepMetrics

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

STEP_PREFIX = "steps/"
STEP_FIELDS = (
    "loss",
    "gradient_norm",
    "learning_rate",
    "step_seconds",
    "tokens_per_second",
    "model_flops_per_second_per_device",
    "held_out_loss",
)


@dataclass(frozen=True)
class LoggedMetric:
    key: str
    value: float
    timestamp_ms: int
    step: int


@dataclass(frozen=True)
class RunContent:
    """Everything that one run holds.

    Attributes:
        key: tells the runs of one sweep apart.
        attempt: changes when a trial starts over; its history then belongs to another run.
        end_ms: None while the trial can still change.
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
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


def sweep_run(record: SweepRecord, results: Sequence[TrialReading]) -> RunContent:
    """The parent: the question, how many trials ended how, and the best measured layout."""
    outcomes = Counter(result.outcome.value for result in results if result.outcome)
    is_live = any(result.outcome is not None and not result.outcome.is_final for result in results)
    ends = [result.measurement.ended for result in results if result.measurement]
    end_ms = _milliseconds(max(ends, default=record.created))
    best = ranked(list(results))[:1]
    best_tags = {"best_layout": best[0].label} if best else {}
    return RunContent(
        key="sweep",
        name=record.name,
        status="RUNNING" if is_live else "FINISHED",
        start_ms=_milliseconds(record.created),
        end_ms=None if is_live else end_ms,
        attempt="",
        tags=_common_tags(record) | {"mlflow.note.content": record.spec.question} | best_tags,
        params={f"baseline.{key}": str(value) for key, value in record.spec.baseline.items()},
        metrics=tuple(LoggedMetric(f"trials.{name}", n, end_ms, 0) for name, n in sorted(outcomes.items())),
    )


def trial_run(record: SweepRecord, result: TrialReading) -> RunContent:
    """The child of one trial."""
    trial = result.trial
    run = _run(record, result, trial.estimate)
    tags = {"is_baseline": str(trial.is_baseline).lower()}
    point = {f"point.{key}": str(value) for key, value in trial.point.items()}
    return replace(run, name=result.label, tags=run.tags | tags, params=point | run.params)


def training_run(record: SweepRecord, reading: Reading, from_trial: str) -> RunContent:
    """The long training with a plan that was taken from a trial of the sweep."""
    assert reading.experiment is not None
    run = _run(record, reading, estimate(reading.experiment))
    return replace(run, tags=run.tags | {"is_baseline": "false", "from_trial": from_trial})


def _run(record: SweepRecord, result: Reading, predicted: Estimate | None) -> RunContent:
    """What a trial and a long training have in common."""
    experiment, measurement = result.experiment, result.measurement
    started = measurement.started if measurement else result.steps[0].time if result.steps else record.created
    is_final = result.outcome is not None and result.outcome.is_final
    ended = measurement.ended if measurement else started
    return RunContent(
        key=f"{result.name}/{experiment.fingerprint if experiment else ''}",
        name=f"training {result.name}",
        status=STATUS.get(result.outcome, "FAILED"),
        start_ms=_milliseconds(started),
        end_ms=_milliseconds(ended) if is_final else None,
        # A job that goes on after a requeue keeps its first step; a trial that starts over takes it at another time.
        attempt=str(result.steps[0].time) if result.steps else "",
        tags=_common_tags(record) | _trial_tags(result),
        params=_params(experiment),
        metrics=(
            *_predicted_metrics(predicted, _milliseconds(record.created)),
            *_step_metrics(result.steps),
            *_measured_metrics(result.performance, _milliseconds(ended)),
        ),
    )


def _common_tags(record: SweepRecord) -> dict[str, str]:
    return {
        "sweep": record.name,
        "mode": record.mode,
        "git_sha": record.git_sha,
        "mlflow.source.name": "trisweep",
        "mlflow.source.git.commit": record.git_sha,
    }


def _trial_tags(result: Reading) -> dict[str, str]:
    experiment, measurement = result.experiment, result.measurement
    tags = {
        "trial_id": result.name,
        "outcome": result.outcome.value if result.outcome else "LEFT_OUT",
        "cause": result.cause[:MAX_TAG_LENGTH],
        "kind": "measured" if result.performance else "not measured",
    }
    if experiment:
        tags["fingerprint"] = experiment.fingerprint
        tags["shape"] = f"{experiment.num_nodes}x{experiment.tasks_per_node}"
        tags["cluster"] = experiment.place
    if performance := result.performance:
        tags["flops_formula"] = performance.flops_formula
        tags["peak_source"] = performance.peak_source
    if measurement and measurement.environment:
        tags["device"] = measurement.environment.device
        tags["hostname"] = measurement.environment.hostname
        tags["torch_version"] = measurement.environment.torch_version
        tags["measured_git_sha"] = measurement.environment.git_sha
    return tags


def _params(experiment: Experiment | None) -> dict[str, str]:
    """The whole experiment except the clusters, whose many numbers are in the artifact `experiment.json`.

    Of another program's trainer only the name and the command: its environment is nobody's business here.
    """
    if experiment is None:
        return {}
    derived = {"data_parallel_size": experiment.data_parallel_size, "num_micro_batches": experiment.num_micro_batches}
    tree = experiment.model_dump(
        mode="json", exclude={"cluster": True, "mixed": True, "data": {"cache_dir"}, "trainer": True}
    )
    if not experiment.trainer.is_own:
        tree["trainer"] = {"name": experiment.trainer.name, "command": " ".join(experiment.trainer.command)}
    groups = {f"{group}.{name}": value for group, values in tree.items() for name, value in values.items()}
    return {key: str(value) for key, value in (derived | groups).items()}


def _step_metrics(steps: Sequence[StepMetrics]) -> list[LoggedMetric]:
    return [
        LoggedMetric(f"{STEP_PREFIX}{name}", getattr(step, name), _milliseconds(step.time), step.step)
        for step in steps
        for name in STEP_FIELDS
        if getattr(step, name) is not None
    ]


def _predicted_metrics(predicted: Estimate | None, timestamp_ms: int) -> list[LoggedMetric]:
    if predicted is None:
        return []
    values = {name: getattr(predicted, name) for name in ESTIMATE_FIELDS} | predicted.step_terms.by_term()
    return _numbers({f"predicted.{name}": value for name, value in values.items()}, timestamp_ms)


def _measured_metrics(performance: Performance | None, timestamp_ms: int) -> list[LoggedMetric]:
    """What was measured; of the ranks' memory only that of the fullest rank."""
    if performance is None:
        return []
    values: dict[str, Any] = {name: getattr(performance, name) for name in PERFORMANCE_FIELDS}
    return _numbers(values | {"peak_memory_bytes": max(performance.peak_memory_bytes, default=None)}, timestamp_ms)


def _numbers(values: Mapping[str, Any], timestamp_ms: int) -> list[LoggedMetric]:
    """The values that are numbers. Text, such as the id of a formula, becomes a tag instead."""
    numbers = {key: value for key, value in values.items() if isinstance(value, int | float)}
    return [LoggedMetric(key, float(value), timestamp_ms, 0) for key, value in numbers.items()]


def _milliseconds(time_seconds: float) -> int:
    return int(time_seconds * 1000)
