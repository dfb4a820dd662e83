"""One trial as plain values: what it is, how it ended, what was predicted and what was measured.

A name begins with `predicted_`, `live_` (the last step of a trial that runs), `measured_`, or `estimated_` (from a
measured time and declared watts, prices or emissions), so that no number can be taken for one of another kind. Reports
and JSON show these rows.

Published figures are no columns of this table at all.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from conf.plan.experiment import Experiment
from conf.plan.knobs import KNOBS
from conf.types.schema import BatchPlan
from conf.types.sweep_spec import figure_name
from conf.units import MILLION
from costs import STEP_TERMS, Estimate
from costs.flops_rates import BlockRates
from results.analysis.footprint import GRAMS_PER_TONNE, Footprint, best_known_footprint, declared_footprint
from results.analysis.scaling import Scaling, scalings
from results.render.units import gib, percent, tflops
from sweeps.confidence import interval_of
from sweeps.labels import whole_point
from sweeps.points.objectives import measured_value
from sweeps.ranking.disturbed import disturbances
from sweeps.ranking.points import MeasuredPoint, measured_points, places, sought_points
from sweeps.reading import TrialReading
from sweeps.sweep import chain_metrics
from sweeps.trial import SweepRecord, Trial
from train_core.trial.measurement import Environment, Outcome, Performance, StepTerms

TrialRow = dict[str, Any]

POINT = "point."
OBJECTIVE = "objective_"
CO2 = "grams_co2_per_million_tokens"
# These fields hold a value for every rank, step or type of devices, which is no cell of a table.
NO_CELLS = ("peak_memory_bytes", "losses", "breakdown", "blocks")
PERFORMANCE_FIELDS = tuple(name for name in Performance.model_fields if name not in NO_CELLS)
FOLLOWS_FROM_TIME = re.compile("seconds|per_second|utilization|num_timed")
ESTIMATE_FIELDS = tuple(name for name in Estimate.model_fields if name not in ("stages", "step_terms", "blocks"))
PARALLEL_FIELDS = tuple(knob.name for knob in KNOBS if knob.shown == "in every row" and knob.group == "parallel")
OF_SCRIPTS = frozenset(
    {"trial_id", "fingerprint", "label", "asked_by", "role", "sweep_stage", "after_trial", "cluster", "num_nodes"}
    | {"world_size", "outcome", "cause", "started", "ended", "num_steps_done", "hostname", "git_sha", "trainer_code"}
    | {"quarantined", "repeat", "num_runs", "place"}
)
"""The columns of a script, of which no layout nor rate is known, beside its values and what it printed."""
BATCH_SIZES = (*BatchPlan.model_fields, "num_micro_batches", "dtype")
SIZES = ("model", "cluster", "num_nodes", *PARALLEL_FIELDS, "data_parallel_size", *BATCH_SIZES)


def trial_row(result: TrialReading, relation: Scaling) -> TrialRow:
    # What a trial has not, or not yet, is None, so that the columns do not depend on what has ended so far.
    trial, measurement = result.trial, result.measurement
    environment = measurement.environment if measurement else None
    return (
        _identity(trial)
        | {"label": result.label, "asked_by": trial.asked_by, "role": trial.role}
        | {"sweep_stage": trial.stage or None, "after_trial": trial.after or None}
        | _layout(trial)
        | {"outcome": result.outcome.value if result.outcome else None, "cause": result.cause}
        | {"failing_rank": measurement.failing_rank if measurement else None}
        | {"started": measurement.started if measurement else None, "ended": measurement.ended if measurement else None}
        | _progress(result)
        | _predicted_cells(trial)
        | _per_token(trial)
        | _measured_cells(result.performance)
        | _estimated_cells(trial.experiment, result.performance)
        | {
            "scaling_kind": relation.kind,
            "scaling_efficiency": relation.efficiency,
            "speed_up": relation.speed_up,
            "scaling_note": relation.note,
        }
        | {name: getattr(environment, name, None) for name in Environment.model_fields}
        | {"quarantined": " ".join(path.name for path in result.damaged_files)}
    )


def plan_row(trial: Trial, label: str) -> TrialRow:
    """A point that is predicted only, with the same identity and `predicted_*` names."""
    return _identity(trial) | {"label": label} | _layout(trial) | _predicted_cells(trial) | _per_token(trial)


def _identity(trial: Trial) -> TrialRow:
    return {
        "trial_id": trial.trial_id,
        "fingerprint": trial.experiment.fingerprint if trial.experiment else None,
        "is_baseline": trial.is_baseline,
        "selected": trial.selected,
        "infeasible_reason": trial.infeasible_reason,
    } | {f"{POINT}{key}": value for key, value in trial.point.items()}


def _layout(trial: Trial) -> TrialRow:
    """Sizes of the experiment. A point that cannot exist has only those that it names itself."""
    experiment = trial.experiment
    if experiment is None:
        named = {key.rsplit(".", 1)[-1]: value for key, value in trial.point.items()}
        return {name: named.get(name) for name in SIZES}
    return {
        "model": experiment.model.name,
        "cluster": experiment.place,
        "num_nodes": experiment.num_nodes,
        **{name: getattr(experiment.parallel, name) for name in PARALLEL_FIELDS},
        "data_parallel_size": experiment.data_parallel_size,
        **dict(experiment.batch),
        "num_micro_batches": experiment.num_micro_batches,
        "dtype": experiment.precision.dtype,
    }


def _progress(result: TrialReading) -> TrialRow:
    """The progress of an unfinished trial; of a finished one only the counts remain."""
    # Once a trial has ended, its last step must not stand beside the medians of its measurement as if it were one.
    live = result.steps[-1] if result.outcome is Outcome.RUNNING and result.steps else None
    return {
        "num_steps_done": result.num_steps_done,
        "num_steps": result.trial.experiment.training.num_steps if result.trial.experiment else None,
        "heartbeat_age_seconds": result.heartbeat_age_seconds,
        "live_loss": live.loss if live else None,
        "live_step_seconds": live.step_seconds if live else None,
        "live_model_flops_per_second_per_device": live.model_flops_per_second_per_device if live else None,
    }


def _predicted_cells(trial: Trial) -> TrialRow:
    experiment, estimate = trial.experiment, trial.estimate
    interval = interval_of(experiment, estimate.implementation, estimate) if experiment and estimate else None
    return {
        **_fields("predicted", estimate, ESTIMATE_FIELDS),
        "predicted_by_type": _rates_by_type(estimate.blocks if estimate else ()),
        "predicted_low_step_seconds": interval.low_seconds if interval else None,
        "predicted_high_step_seconds": interval.high_seconds if interval else None,
        **_fields("predicted", estimate and estimate.step_terms, STEP_TERMS),
    }


def _fields(prefix: str, holder: object, names: Iterable[str]) -> TrialRow:
    """These fields by name, None where there is no holder."""
    return {f"{prefix}_{name}": None if holder is None else getattr(holder, name) for name in names}


def _measured_cells(performance: Performance | None) -> TrialRow:
    """Memory is the fullest rank's, as the prediction's is the worst stage's; terms of the step are the slowest's."""
    values = _fields("measured", performance, PERFORMANCE_FIELDS)
    if performance is not None and not performance.is_timed:
        values |= {f"measured_{name}": None for name in PERFORMANCE_FIELDS if FOLLOWS_FROM_TIME.search(name)}
    # The device that holds most decides whether the plan fits.
    memory = max(performance.peak_memory_bytes, default=None) if performance else None
    terms = performance.breakdown.slowest if performance and performance.breakdown else None
    by_type = {"measured_by_type": _rates_by_type(performance.blocks if performance else ())}
    parts = _fields("measured", terms, StepTerms.model_fields)
    return values | by_type | {"measured_peak_memory_bytes": memory} | parts


def _per_token(trial: Trial) -> TrialRow:
    """Energy, money and carbon on paper."""
    footprint = declared_footprint(trial.experiment, trial.estimate) if trial.experiment and trial.estimate else None
    return _footprint("predicted", footprint)


def _estimated_cells(experiment: Experiment | None, performance: Performance | None) -> TrialRow:
    """The same from the measured time; `estimated_co2_from` says whether carbon is from counters or declared watts."""
    if experiment is None or performance is None or not performance.is_timed:
        return _footprint("estimated", None) | {"estimated_co2_from": None}
    declared, best = declared_footprint(experiment, performance), best_known_footprint(experiment, performance)
    carbon = f"estimated_{CO2}"
    return _footprint("estimated", declared) | {
        carbon: _grams(best),
        "estimated_co2_from": None if _grams(best) is None else best.energy_is,
    }


def _footprint(prefix: str, footprint: Footprint | None) -> TrialRow:
    return {
        f"{prefix}_joules_per_token": footprint.joules_per_token if footprint else None,
        f"{prefix}_dollars_per_million_tokens": footprint.dollars(MILLION) if footprint else None,
        f"{prefix}_{CO2}": _grams(footprint) if footprint else None,
    }


def _grams(footprint: Footprint) -> float | None:
    tonnes = footprint.tonnes_co2(MILLION)
    return None if tonnes is None else tonnes * GRAMS_PER_TONNE


def _rates_by_type(blocks: Sequence[BlockRates]) -> str | None:
    """Model TFLOPS per device, share of the own peak and memory of each type of devices; None where all are equal."""
    texts = (
        f"{block.cluster}: {tflops(block.model_flops_per_second_per_device)} TFLOPS,"
        f" MFU {percent(block.model_flops_utilization)} %, {gib(block.peak_memory_bytes)} GiB"
        for block in blocks
    )
    return "; ".join(texts) or None


def repeat_columns(record: SweepRecord, results: Sequence[TrialReading]) -> list[dict[str, Any]]:
    """Return a row for every result: `is_middle_run` marks the trial whose seconds of a step are its point's."""
    points, disturbed = measured_points(results), disturbances(results)
    points_by_trial = {run.trial.trial_id: point for point in points for run in point.runs}
    ranked = points if record.seeks_rate else sought_points(record, results)
    by_point = zip(ranked, places(ranked), strict=True)
    placed = {run.trial.trial_id: place for point, place in by_point for run in point.runs}
    sought = () if record.seeks_rate else record.objective
    return [
        _point_columns(result, points_by_trial.get(result.trial.trial_id), placed.get(result.trial.trial_id))
        | {"disturbed": disturbed.get(result.trial.trial_id)}
        | {f"{OBJECTIVE}{figure_name(each) or each}": measured_value(each, result) for each in sought}
        for result in results
    ]


def _point_columns(result: TrialReading, point: MeasuredPoint | None, place: str | None) -> TrialRow:
    """How often its point was measured, which place it has, and how sure its time is."""
    timed = point if point and point.performance.is_timed else None
    return {
        "repeat": result.trial.repeat,
        "num_runs": len(point.runs) if point else None,
        "is_middle_run": result.trial.trial_id == point.middle.trial.trial_id if point else None,
        "place": place or None,
        "point_step_seconds": timed.performance.step_seconds if timed else None,
        "step_seconds_low": timed.seconds.low if timed else None,
        "step_seconds_high": timed.seconds.high if timed else None,
        "interval_method": timed.seconds.method if timed else None,
    }


def collected(record: SweepRecord, results: Sequence[TrialReading]) -> Iterator[TrialRow]:
    """The rows of a sweep's table in the order of its record; their columns do not depend on how far it has come.

    One comes after the other, as thousands together take much memory.
    """
    metrics, keys = chain_metrics(results), _keys_of([result.trial for result in results])
    for result, relation, repeats in zip(results, scalings(results), repeat_columns(record, results), strict=True):
        row = trial_row(result, relation) | repeats
        if is_script := bool(result.experiment and result.experiment.trainer.is_script):
            kept = (name for name in row if name in OF_SCRIPTS or name.startswith((POINT, OBJECTIVE)))
            row = {name: row[name] for name in kept}
        printed = (result.metrics if is_script else {}) | metrics.get(result.name, {})
        figures = {f"measured_{name}": value for name, value in printed.items()}
        yield _with_whole_point(row | figures, result.trial, keys)


def columns_of(rows: Iterable[TrialRow]) -> dict[str, list[Any]]:
    """The values of all rows by column; None where a row has no such column."""
    columns: dict[str, list[Any]] = {}
    for number, row in enumerate(rows):
        for name, value in row.items():
            columns.setdefault(name, [None] * number).append(value)
        for values in columns.values():
            if len(values) == number:
                values.append(None)
    return columns


def _keys_of(trials: Iterable[Trial]) -> list[str]:
    return list(dict.fromkeys(key for trial in trials for key in trial.point))


def _with_whole_point(row: TrialRow, trial: Trial, keys: Collection[str]) -> TrialRow:
    """The row with a value of every key that any point names: where its point leaves it, the configuration's."""
    return row | {POINT + key: value for key, value in whole_point(trial.point, trial.experiment, keys).items()}


def plan_rows(record: SweepRecord) -> Iterator[TrialRow]:
    """Points that are predicted only, with the same identity and `predicted_*` columns."""
    keys = _keys_of(record.plan)
    for trial in record.plan:
        yield _with_whole_point(plan_row(trial, record.plan_label_of(trial)), trial, keys)
