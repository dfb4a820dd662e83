"""The MLflow runs of a sweep, of its trials, and of a long training: pure functions of what is on disk."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

from conf.plan.experiment import Experiment
from conf.plan.knobs import KNOBS, knob_value
from conf.units import GIBIBYTE
from costs import Estimate, estimate
from results.analysis.findings.verdict import verdict
from results.analysis.scaling import Scaling, scalings
from results.mlflow import metric_keys
from results.mlflow.metric_keys import SOUGHT
from results.mlflow.run_content import (
    ORDER,
    STATUS,
    SWEEP,
    LoggedMetric,
    RunContent,
    StepHistory,
    at,
    milliseconds,
    param,
    tag,
)
from results.render.legend import legend_text
from sweeps.labels import whole_point
from sweeps.points.objectives import is_better_when_larger
from sweeps.ranking.disturbed import disturbances
from sweeps.ranking.points import best_measured, best_reading
from sweeps.reading import Reading, TrialReading
from sweeps.trial import SweepRecord
from train_core.trial.folder import steps_of
from train_core.trial.measurement import LIVE, Outcome

NO_FAILURES = (None, *LIVE, Outcome.COMPLETED, Outcome.INFEASIBLE, Outcome.PRUNED)
GROUPS = ("model", "parallel", "batch", "precision", "training")
"""The groups of an experiment that are parameters; the artifact `config.json` holds all of them."""
BEST = ("TFLOPS", "MFU_pct", "step_s", "tok_per_s", "mem_GiB")


def sweep_runs(
    record: SweepRecord, results: Sequence[TrialReading], report: str = "", ended: str = ""
) -> Iterator[RunContent]:
    """The parent, and after it one child for every trial in the order of the results, each made when it is asked for.

    Args:
        ended: the limit that has ended the sweep while trials were left; else empty.
    """
    relations, disturbed = scalings(results), disturbances(results)
    baseline = next((result for result in results if result.trial.is_baseline), None)
    name = _run_title(baseline) if baseline else ""
    both = list(zip(results, relations, strict=True))
    ends = [each.measurement.ended for each, relation in both if relation.kind == "baseline" and each.measurement]
    since = max(ends, default=0.0)
    keys = dict.fromkeys(key for result in results for key in result.trial.point)
    yield _parent(record, results, relations, report, ended)
    for result, relation in both:
        yield _trial_run(record, result, relation, name, since, disturbed.get(result.name, ""), keys)


def _parent(
    record: SweepRecord, results: Sequence[TrialReading], relations: Sequence[Scaling], report: str, ended: str
) -> RunContent:
    is_live = not ended and any(result.outcome in LIVE for result in results)
    ends = [result.measurement.ended for result in results if result.measurement]
    end_ms = milliseconds(max(ends, default=record.created))
    best = best_reading(record, results)
    note = _note(record, results, ended)
    first, direction = record.objective[0], "DESC" if is_better_when_larger(record.objective[0]) else "ASC"
    tags = {"kind": "sweep", "question": record.spec.question, "mlflow.note.content": note}
    tags |= {ORDER: f"metrics.`{metric_keys.objective_key(first)}` {direction}"}
    tags |= {"best_layout": best.label} if best else {}
    return RunContent(
        key=SWEEP,
        name=record.name,
        status="RUNNING" if is_live else "FINISHED",
        start_ms=milliseconds(record.created),
        end_ms=None if is_live else end_ms,
        attempt="",
        tags=_common_tags(record) | _baseline_tags(results) | {key: tag(value) for key, value in tags.items()},
        params={},
        metrics=tuple(at(end_ms, _counts(results) | _best(record, results) | _best_scaling(relations))),
        artifacts=report,
    )


def _counts(results: Sequence[TrialReading]) -> dict[str, float]:
    """The same keys at every moment, since MLflow cannot take one back."""
    outcomes = [result.outcome for result in results]
    return {
        "trials/measured": sum(result.performance is not None for result in results),
        "trials/pending": outcomes.count(Outcome.PENDING),
        "trials/running": outcomes.count(Outcome.RUNNING),
        "trials/infeasible": outcomes.count(Outcome.INFEASIBLE),
        "trials/pruned": outcomes.count(Outcome.PRUNED),
        "trials/failed": sum(outcome not in NO_FAILURES for outcome in outcomes),
        "trials/left_out": outcomes.count(None),
    }


def _best(record: SweepRecord, results: Sequence[TrialReading]) -> dict[str, float]:
    """The figures of the best point: those of a step by its middle run, and what the sweep seeks over all its runs."""
    best = best_measured(record, results)
    if best is None or best.middle.performance is None:
        return {}
    values = {} if is_script(best.middle) else metric_keys.measured_metrics(best.middle.performance)
    of_step = {f"best/{name}": values[f"meas/{name}"] for name in BEST if f"meas/{name}" in values}
    sought = dict(zip(map(metric_keys.objective_key, record.objective), best.values, strict=True))
    return of_step | {key.replace(SOUGHT, "best/", 1): value for key, value in sought.items() if key.startswith(SOUGHT)}


def _best_scaling(relations: Sequence[Scaling]) -> dict[str, float]:
    """The highest efficiency of each kind; the baseline itself does not count."""
    best: dict[str, float] = {}
    for relation in relations:
        if relation.kind in ("weak", "strong") and relation.efficiency is not None:
            key = f"best/{relation.kind}_pct"
            best[key] = max(best.get(key, -math.inf), metric_keys.PERCENT * relation.efficiency)
    return best


def _baseline_tags(results: Sequence[TrialReading]) -> dict[str, str]:
    """The baseline that the trials of this very sweep are held against: of a proxy, the proxy's own."""
    for result in results:
        if result.trial.is_baseline:
            point = {f"baseline.{key}": tag(str(value)) for key, value in result.trial.point.items()}
            outcome = result.outcome.value if result.outcome else "LEFT_OUT"
            return point | {"baseline": tag(_run_title(result)), "baseline_outcome": outcome}
    return {"baseline": "none"}


def _note(record: SweepRecord, results: Sequence[TrialReading], ended: str) -> str:
    """Markdown, which MLflow shows at the top of the parent's page; its answer is the report's, word for word."""
    finding = verdict(record, results, ended=ended)
    answer = " ".join(filter(None, (finding.headline, finding.figures)))
    where = "a small stand-in, measured on one machine" if record.mode == "proxy" else "at full size"
    size = f" The sweep is of {where}." if not all(map(is_script, results)) else ""
    setups = (result.experiment for result in results if result.experiment)
    layouts = legend_text(setups) if record.labels.names_layouts else ""
    names = "; ".join(filter(None, (layouts, *(f"{name} = {key}" for name, key in record.labels.legend))))
    return "\n\n".join(
        (
            record.spec.question,
            f"{answer}{size}",
            "The report is `report.html` among the artifacts.",
            *([f"Names: {names}."] if names else []),
        )
    )


def _trial_run(
    record: SweepRecord,
    result: TrialReading,
    scaling: Scaling,
    baseline: str,
    since: float,
    disturbed: str,
    keys: Collection[str],
) -> RunContent:
    """The child of one trial; the baseline, which had been measured at `since`, may be empty."""
    trial, name = result.trial, _run_title(result)
    run = _shared_content(record, result, trial.estimate)
    point = whole_point(trial.point, trial.experiment, keys)
    tags = {
        "kind": "trial",
        "layout": name,
        "is_baseline": str(trial.is_baseline).lower(),
        "baseline": baseline,
        "scaling": scaling.kind or "not comparable",
        "held_constant": scaling.note,
        "disturbed": disturbed or "no",
    } | ({"stage": trial.stage, "after": trial.after} if trial.stage else {})
    ended = result.measurement.ended if result.measurement else record.created
    scaled = at(milliseconds(max(ended, since)), metric_keys.scaling_metrics(scaling))
    sought = at(milliseconds(ended), metric_keys.objective_metrics(record.objective, result))
    figures = at(milliseconds(ended), metric_keys.figure_metrics(result))
    return replace(
        run,
        name=name,
        tags=run.tags | {key: tag(value) for key, value in tags.items()},
        params=({} if is_script(result) else {key: param(value) for key, value in point.items()}) | run.params,
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


def _run_title(result: TrialReading) -> str:
    """Its label, and which run of its point it is; of a point that cannot exist, what it asks for."""
    return result.title if result.label or not result.trial.is_baseline else "baseline"


def _common_tags(record: SweepRecord) -> dict[str, str]:
    return {
        "sweep": record.name,
        "mode": record.mode,
        "git_sha": record.git_sha,
        "mlflow.source.name": "trisweep",
        "mlflow.source.git.commit": record.git_sha,
    }


def _shared_content(record: SweepRecord, result: Reading, prediction: Estimate | None) -> RunContent:
    """Return the content that the runs of a trial and of a long training share."""
    experiment, measurement, lines = result.experiment, result.measurement, result.step_lines
    first = next(steps_of(lines), None)
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
        tags=_common_tags(record) | _trial_tags(result),
        params=_params(experiment),
        metrics=()
        if is_script(result)
        else (
            *(at(milliseconds(record.created), metric_keys.predicted_metrics(prediction)) if prediction else ()),
            *_measured_metrics(result, prediction, milliseconds(ended)),
        ),
        steps=StepHistory(lines, partial(_step_metrics, lines, is_own=experiment is None or experiment.trainer.is_own)),
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
    if performance is not None and not is_script(result):
        tags |= {"flops_formula": performance.flops_formula, "peak_source": performance.peak_source}
    if measurement and (environment := measurement.environment):
        tags |= {name: getattr(environment, name) for name in ("device", "hostname", "torch_version")}
        tags["measured_git_sha"] = environment.git_sha
    if experiment := result.experiment:
        tags |= {
            "fingerprint": experiment.fingerprint,
            "shape": f"{experiment.num_nodes}x{experiment.tasks_per_node}",
            "cluster": experiment.place,
            "trainer": experiment.trainer.name,
        } | ({} if experiment.trainer.is_script else {"model": experiment.model.name})
    return tags


def is_script(reading: Reading) -> bool:
    """True of a trial of a script, of which no model, layout nor rate is known."""
    return reading.experiment is not None and reading.experiment.trainer.is_script


def _params(experiment: Experiment | None) -> dict[str, str]:
    """Every knob by its short name, as in names of layouts, and the groups that make the step by their full names.

    Of a script, the values that it is told.
    """
    if experiment is None:
        return {}
    if (trainer := experiment.trainer).is_script:
        seed = {"seed": str(experiment.training.seed)} if trainer.is_told("training.seed") else {}
        return {name: param(value) for name, value in trainer.params.items()} | seed
    knobs = {
        knob.label.format("") or knob.name: param(knob_value(knob.name, experiment.parallel, experiment.batch))
        for knob in KNOBS
        if knob.name != "world_size"
    }
    sizes = {"devices": str(experiment.parallel.world_size), "nodes": str(experiment.num_nodes)}
    tree = experiment.model_dump(mode="json", include=set(GROUPS))
    return knobs | sizes | {f"{group}.{name}": param(value) for group in GROUPS for name, value in tree[group].items()}


def _step_metrics(lines: bytes, *, is_own: bool) -> list[LoggedMetric]:
    return [
        LoggedMetric(key, value, milliseconds(step.time), step.step)
        for step in steps_of(lines)
        for key, value in metric_keys.step_metrics(step, is_own=is_own).items()
    ]


def _measured_metrics(result: Reading, prediction: Estimate | None, timestamp_ms: int) -> list[LoggedMetric]:
    performance = result.performance
    if performance is None:
        return []
    memory = (
        LoggedMetric(metric_keys.RANK_MEMORY, num_bytes / GIBIBYTE, timestamp_ms, rank)
        for rank, num_bytes in enumerate(performance.peak_memory_bytes)
    )
    # Ranks that took turns on a device say nothing of a step that is predicted for a device each.
    has_own_devices = not (isinstance(result, TrialReading) and result.shares_devices)
    compared = {}
    if prediction and has_own_devices:
        compared["error/step_pct"] = 100 * (prediction.step_seconds / performance.step_seconds - 1)
    return [*at(timestamp_ms, metric_keys.measured_metrics(performance) | compared), *memory]
