"""The MLflow run of a trial, or of a long training: a pure function of what is on disk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from conf.plan.experiment import Experiment
from conf.plan.knobs import KNOBS, knob_value
from results.mlflow import metric_keys
from results.mlflow.run_content import STATUS, LoggedMetric, RunContent, StepHistory, at, milliseconds, param, tag
from results.scaling import Scaling
from sweeps.reading import Reading, TrialReading
from sweeps.trial import SweepRecord
from train_core.costs import Estimate, estimate
from train_core.measurement import Environment

GROUPS = ("model", "parallel", "batch", "precision", "training")
"""The groups of an experiment that are parameters; the artifact `config.json` holds all of them."""


@dataclass(frozen=True)
class Related:
    """A trial's relation to the baseline of its sweep.

    Attributes:
        baseline: its short name; empty where the sweep has none.
        since: when the baseline had been measured, in seconds since the epoch.
        disturbed: what disturbed the trial; empty where it was steady.
    """

    scaling: Scaling
    baseline: str
    since: float = 0.0
    disturbed: str = ""


def trial_run(record: SweepRecord, result: TrialReading, related: Related) -> RunContent:
    """The child of one trial."""
    trial, scaling = result.trial, related.scaling
    name = run_title(result)
    run = _shared_content(record, result, trial.estimate)
    tags = {
        "kind": "trial",
        "layout": name,
        "is_baseline": str(trial.is_baseline).lower(),
        "baseline": related.baseline,
        "scaling": scaling.kind or "not comparable",
        "held_constant": scaling.note,
        "disturbed": related.disturbed or "no",
    } | ({"stage": trial.stage, "after": trial.after} if trial.stage else {})
    ended = result.measurement.ended if result.measurement else record.created
    scaled = at(milliseconds(max(ended, related.since)), metric_keys.scaling_metrics(scaling))
    sought = at(milliseconds(ended), metric_keys.objective_metrics(record.objective, result))
    figures = at(milliseconds(ended), metric_keys.stage_metrics(result))
    return replace(
        run,
        name=name,
        tags=run.tags | {key: tag(value) for key, value in tags.items()},
        params={key: param(value) for key, value in trial.point.items()} | run.params,
        metrics=(*run.metrics, *sought, *figures, *scaled),
    )


def training_run(record: SweepRecord, reading: Reading, from_trial: str) -> RunContent:
    """The long training with a plan that was taken from a trial of the sweep."""
    run = _shared_content(record, reading, estimate(reading.planned))
    return replace(
        run,
        name=f"training {reading.name}",
        tags=run.tags | {"kind": "training", "layout": reading.planned.label, "from_trial": from_trial},
    )


def run_title(result: TrialReading) -> str:
    """Its label, and which run of its point it is; of a point that cannot exist, what it asks for."""
    return result.title if result.label or not result.trial.is_baseline else "baseline"


def common_tags(record: SweepRecord) -> dict[str, str]:
    return {
        "sweep": record.name,
        "mode": record.mode,
        "git_sha": record.git_sha,
        "mlflow.source.name": "trisweep",
        "mlflow.source.git.commit": record.git_sha,
    }


def _shared_content(record: SweepRecord, result: Reading, prediction: Estimate | None) -> RunContent:
    """Return the content that the runs of a trial and of a long training share."""
    experiment, measurement = result.experiment, result.measurement
    first = result.first_step
    # It begins with its first step, while the trial runs and afterwards. MLflow changes no start, and a run whose page
    # somebody has open must not be replaced when the trial ends.
    began = measurement.started if measurement else record.created
    started = first.time - first.step_seconds if first else began
    is_final = result.outcome is not None and result.outcome.is_final
    ended = measurement.ended if measurement else started
    return RunContent(
        key=f"{result.name}/{experiment.fingerprint if experiment else ''}",
        name=result.name,
        status=STATUS.get(result.outcome, "FAILED"),
        start_ms=milliseconds(started),
        end_ms=milliseconds(ended) if is_final else None,
        # A job that goes on after a requeue keeps its first step; a trial that starts over takes it at another time.
        attempt=str(first.time) if first else "",
        tags=common_tags(record) | _trial_tags(result),
        params=_params(experiment),
        metrics=(
            *(at(milliseconds(record.created), metric_keys.predicted_metrics(prediction)) if prediction else ()),
            *_measured_metrics(result, prediction, milliseconds(ended)),
        ),
        steps=StepHistory(result.step_lines, partial(_step_metrics, result)),
        artifacts=result.submission.job_id or "" if result.submission else "",
    )


def _trial_tags(result: Reading) -> dict[str, str]:
    measurement, performance = result.measurement, result.performance
    tags = {
        "trial_id": result.name,
        "outcome": result.outcome.value if result.outcome else "LEFT_OUT",
        "cause": tag(result.cause),
        "measured": str(performance is not None).lower(),
    }
    if performance is not None:
        tags |= {"flops_formula": performance.flops_formula, "peak_source": performance.peak_source}
    if measurement and measurement.environment:
        tags |= _environment_tags(measurement.environment)
    return tags | _experiment_tags(result.experiment)


def _experiment_tags(experiment: Experiment | None) -> dict[str, str]:
    if experiment is None:
        return {}
    return {
        "fingerprint": experiment.fingerprint,
        "shape": f"{experiment.num_nodes}x{experiment.tasks_per_node}",
        "cluster": experiment.place,
        "model": experiment.model.name,
        "trainer": experiment.trainer.name,
    }


def _environment_tags(environment: Environment) -> dict[str, str]:
    return {
        "device": environment.device,
        "hostname": environment.hostname,
        "torch_version": environment.torch_version,
        "measured_git_sha": environment.git_sha,
    }


def _params(experiment: Experiment | None) -> dict[str, str]:
    """Every knob by its short name, as in names of layouts, and the groups that make the step by their full names."""
    if experiment is None:
        return {}
    knobs = {
        knob.label.format("") or knob.name: param(knob_value(knob.name, experiment.parallel, experiment.batch))
        for knob in KNOBS
        if knob.name != "world_size"
    }
    sizes = {"devices": str(experiment.parallel.world_size), "nodes": str(experiment.num_nodes)}
    tree = experiment.model_dump(mode="json", include=set(GROUPS))
    return knobs | sizes | {f"{group}.{name}": param(value) for group in GROUPS for name, value in tree[group].items()}


def _step_metrics(result: Reading) -> list[LoggedMetric]:
    return [
        LoggedMetric(key, value, milliseconds(step.time), step.step)
        for step in result.steps
        for key, value in metric_keys.step_metrics(step).items()
    ]


def _measured_metrics(result: Reading, prediction: Estimate | None, timestamp_ms: int) -> list[LoggedMetric]:
    performance = result.performance
    if performance is None:
        return []
    memory = (
        LoggedMetric(metric_keys.RANK_MEMORY, metric_keys.in_gib(num_bytes), timestamp_ms, rank)
        for rank, num_bytes in enumerate(performance.peak_memory_bytes)
    )
    # Ranks that took turns on a device say nothing of a step that is predicted for a device each.
    has_own_devices = not (isinstance(result, TrialReading) and result.shares_devices)
    compared = metric_keys.error_metrics(prediction, performance) if prediction and has_own_devices else {}
    return [*at(timestamp_ms, metric_keys.measured_metrics(performance) | compared), *memory]
