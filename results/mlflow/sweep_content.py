"""The MLflow run of a whole sweep: the question, how its trials ended, the best of them, the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from results.mlflow import metric_keys
from results.mlflow.run_content import SWEEP, RunContent, at, milliseconds, tag
from results.mlflow.trial_content import Related, common_tags, run_title, trial_run
from results.report.findings.verdict import verdict
from results.scaling import Scaling, scalings
from results.terminal.drawing import legend_text
from sweeps.reading import TrialReading
from sweeps.repeats.by_objective import best_middle, best_reading
from sweeps.repeats.ranking import disturbances
from sweeps.trial import SweepRecord
from train_core.measurement import LIVE, Outcome

NO_FAILURES = (None, *LIVE, Outcome.COMPLETED, Outcome.INFEASIBLE, Outcome.PRUNED)
BEST = ("TFLOPS", "MFU_pct", "step_s", "tok_per_s", "mem_GiB")


def sweep_runs(record: SweepRecord, results: Sequence[TrialReading], report: str = "") -> list[RunContent]:
    """The parent, and after it one child for every trial in the order of the results.

    Args:
        report: changes when the report does, which is among the parent's artifacts.
    """
    relations, disturbed = scalings(results), disturbances(results)
    baseline = next((result for result in results if result.trial.is_baseline), None)
    name = run_title(baseline) if baseline else ""
    both = zip(results, relations, strict=True)
    ends = [each.measurement.ended for each, relation in both if relation.kind == "baseline" and each.measurement]
    since = max(ends, default=0.0)
    trials = [
        trial_run(record, result, Related(relation, name, since, disturbed.get(result.trial.trial_id, "")))
        for result, relation in zip(results, relations, strict=True)
    ]
    return [_parent(record, results, relations, report), *trials]


def _parent(
    record: SweepRecord, results: Sequence[TrialReading], relations: Sequence[Scaling], report: str
) -> RunContent:
    is_live = any(result.outcome in LIVE for result in results)
    ends = [result.measurement.ended for result in results if result.measurement]
    end_ms = milliseconds(max(ends, default=record.created))
    best = best_reading(record, results)
    tags = {"kind": "sweep", "question": record.spec.question, "mlflow.note.content": _note(record, results, best)}
    tags |= {"best_layout": best.label} if best else {}
    return RunContent(
        key=SWEEP,
        name=record.name,
        status="RUNNING" if is_live else "FINISHED",
        start_ms=milliseconds(record.created),
        end_ms=None if is_live else end_ms,
        attempt="",
        tags=common_tags(record) | _baseline_tags(results) | {key: tag(value) for key, value in tags.items()},
        params={},
        metrics=tuple(at(end_ms, _counts(results) | _best(best_middle(record, results)) | _best_scaling(relations))),
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


def _best(best: TrialReading | None) -> dict[str, float]:
    if best is None or best.performance is None:
        return {}
    values = metric_keys.measured_metrics(best.performance)
    return {f"best/{name}": values[f"meas/{name}"] for name in BEST if f"meas/{name}" in values}


def _best_scaling(relations: Sequence[Scaling]) -> dict[str, float]:
    """The highest efficiency of each kind; the baseline itself does not count."""
    efficiencies = [
        (relation.kind, relation.efficiency) for relation in relations if relation.kind in ("weak", "strong")
    ]
    best = {
        kind: max(value for other, value in efficiencies if other == kind and value is not None)
        for kind, _ in efficiencies
    }
    return {f"best/{kind}_pct": metric_keys.PERCENT * efficiency for kind, efficiency in best.items()}


def _baseline_tags(results: Sequence[TrialReading]) -> dict[str, str]:
    """The baseline that the trials of this very sweep are held against: of a proxy, the proxy's own."""
    for result in results:
        if result.trial.is_baseline:
            point = {f"baseline.{key}": tag(str(value)) for key, value in result.trial.point.items()}
            outcome = result.outcome.value if result.outcome else "LEFT_OUT"
            return point | {"baseline": tag(run_title(result)), "baseline_outcome": outcome}
    return {"baseline": "none"}


def _layouts(record: SweepRecord, results: Sequence[TrialReading]) -> str:
    setups = (result.experiment for result in results if result.experiment)
    return legend_text(setups) if record.labels.names_layouts else ""


def _keys(record: SweepRecord) -> Iterator[str]:
    return (f"{name} = {key}" for name, key in record.labels.legend)


def _note(record: SweepRecord, results: Sequence[TrialReading], best: TrialReading | None) -> str:
    """Markdown, which MLflow shows at the top of the parent's page; its answer is the report's, word for word."""
    finding = verdict(record, results, [best] if best else [])
    answer = " ".join(filter(None, (finding.headline, finding.figures)))
    where = "a small stand-in, measured on one machine" if record.mode == "proxy" else "at full size"
    return "\n\n".join(
        (
            record.spec.question,
            f"{answer} The sweep is of {where}.",
            "The report is `report.html` among the artifacts.",
            f"Names: {'; '.join(filter(None, (_layouts(record, results), *_keys(record))))}.",
        )
    )
