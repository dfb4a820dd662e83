"""The first screen: the answer at full size, how sure it is, and what was measured here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conf.units import SECONDS_PER_HOUR, TERA, TRILLION
from results.legend import legend
from results.report.findings.best_plan import best_on_paper, num_devices
from results.report.findings.verdict import Verdict, predicted_study_sentence, verdict
from results.report.section import Block, Heading, KeyFigure, KeyFigures, NumbersAre, Paragraph, ReportSubject, Section
from results.scaling import Scaling, scalings
from results.scaling.study import predicted_study
from results.terminal import plan_label
from results.units import count, percent, seconds, significant, tflops
from sweeps.confidence import Interval, interval_of
from sweeps.reading import TrialReading, ranked
from sweeps.trial import SweepRecord, Trial
from train_core.costs import Estimate
from train_core.measurement import Performance


@dataclass(frozen=True)
class _Best:
    """The predicted plan that answers the question, and the baseline's prediction on as many devices."""

    trial: Trial
    estimate: Estimate
    interval: Interval
    baseline: Trial | None


def section(subject: ReportSubject) -> Section:
    """What the sweep answers. There is always an answer, even if it is that nothing is known yet."""
    record, results = subject.sweep.record, subject.results
    measured = measured_verdict(record, results)
    told: tuple[Block, ...] = tuple(Paragraph(sentence) for sentence in measured.details)
    best, best_first = _best(record), ranked(list(results))
    if record.mode == "cluster" and best_first:
        figures, beside = _measured_figures(best_first[0], results), predicted_sentence(record, best)
        blocks: tuple[Block, ...] = (KeyFigures(figures), *told, Paragraph(beside))
        return Section("answer", "The answer", "measured and predicted", measured.headline, blocks)
    if best is None and record.plan:
        return Section(
            "answer", "The answer", "predicted", predicted_sentence(record, best), (Paragraph(measured.headline), *told)
        )
    if best is None:
        blocks = (*_proxy_figures(best_first, results), *told)
        return Section("answer", "The answer", "measured", measured.headline, blocks)
    here = (Heading(_where(record)), Paragraph(measured.headline), *told)
    blocks = (KeyFigures(_predicted_figures(best)), *_outside(best), *here)
    return Section("answer", "The answer", "measured and predicted", predicted_sentence(record, best), blocks)


def layouts(record: SweepRecord) -> tuple[tuple[str, str], ...]:
    """The legend of all names of layouts in the report."""
    return legend(trial.experiment for trial in (*record.plan, *record.trials) if trial.experiment)


def measured_verdict(record: SweepRecord, results: Sequence[TrialReading]) -> Verdict:
    """The verdict on what was measured."""
    if not results:
        return Verdict("Nothing was measured: this sweep has no trials.")
    return verdict(record, results, ranked(list(results)))


def _where(record: SweepRecord) -> str:
    """The heading of what was measured, which says of a proxy that it is one."""
    model = next((trial.experiment.model.name for trial in record.trials if trial.experiment), None)
    return "Measured here" if record.mode == "cluster" or model is None else f"Measured here, with the proxy {model}"


def predicted_sentence(record: SweepRecord, best: _Best | None) -> str:
    """The plan that the cost model finds fastest, or why there is none."""
    if best is None:
        return "No full-size point was predicted." if not record.plan else "No full-size point fits."
    if study := predicted_study(record, record.plan):
        return predicted_study_sentence(study)
    experiment = best.trial.experiment
    assert experiment is not None
    return (
        f"Predicted: {experiment.model.name} trains fastest on {_devices(num_devices(best.trial))} of"
        f" {experiment.place} as {plan_label(best.trial)}, with"
        f" {tflops(best.estimate.model_flops_per_second_per_device)} model TFLOPS per device"
        f" ({percent(best.estimate.model_flops_utilization)} % of the peak) and a step every"
        f" {seconds(best.estimate.step_seconds)} s."
    )


def _best(record: SweepRecord) -> _Best | None:
    trial = best_on_paper(record)
    if trial is None or trial.estimate is None or trial.experiment is None:
        return None
    baseline = next((other for other in record.plan if other.is_baseline and other.estimate), None)
    is_alike = baseline is not None and num_devices(baseline) == num_devices(trial)
    interval = interval_of(trial.experiment, trial.estimate.implementation, trial.estimate)
    return _Best(trial, trial.estimate, interval, baseline if is_alike else None)


def _devices(number_of: int) -> str:
    return f"{number_of:,} device{'' if number_of == 1 else 's'}"


def _predicted_figures(best: _Best) -> tuple[KeyFigure, ...]:
    estimate, interval = best.estimate, best.interval
    low, high = (
        significant(estimate.model_flops_per_second_per_device * estimate.step_seconds / bound / TERA)
        for bound in (interval.high_seconds, interval.low_seconds)
    )
    figures = [
        _figure("plan", plan_label(best.trial), _devices(num_devices(best.trial))),
        _figure(
            "model TFLOPS",
            tflops(estimate.model_flops_per_second_per_device),
            f"per device; {low} to {high} with 80 % probability",
        ),
        _figure("MFU", f"{percent(estimate.model_flops_utilization)} %", "model FLOPs, of the dense peak"),
        *_against_baseline(best),
        _cost(best.trial, estimate.tokens_per_second, "predicted"),
    ]
    return tuple(figures)


def _against_baseline(best: _Best) -> list[KeyFigure]:
    baseline = best.baseline
    if baseline is None or baseline.estimate is None or baseline.trial_id == best.trial.trial_id:
        return []
    faster = best.estimate.tokens_per_second / baseline.estimate.tokens_per_second
    doubt = best.interval.rivals > faster - 1
    sure = "less than predictions can tell apart" if doubt else "more than predictions err between plans"
    note = f"tokens/s over the baseline's ({plan_label(baseline)}); {sure}"
    return [_figure("against the baseline", f"x {significant(faster)}", note)]


def _figure(name: str, value: str, note: str, kind: NumbersAre = "predicted") -> KeyFigure:
    return KeyFigure(name, value, note, kind)


def _cost(trial: Trial, tokens_per_second: float, kind: NumbersAre) -> KeyFigure:
    """Device-hours of a trillion tokens, and their price where the cluster's file names one."""
    assert trial.experiment is not None
    device, devices = trial.experiment.cluster.device, num_devices(trial)
    hours = TRILLION / tokens_per_second * devices / SECONDS_PER_HOUR
    price = device.price_per_hour
    note = f"${count(hours * price)} at ${price:g} a device-hour" if price else "no price is declared"
    return KeyFigure("a trillion tokens", f"{_rounded(hours)} device-hours", note, kind)


def _rounded(value: float) -> str:
    """Three digits at most, because nothing here is known better."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else significant(value)


def _measured_figures(best: TrialReading, results: Sequence[TrialReading]) -> tuple[KeyFigure, ...]:
    performance = best.performance
    assert performance is not None
    relation = dict(zip((result.trial.trial_id for result in results), scalings(results), strict=True))
    return (
        _figure("plan", best.label, _devices(performance.num_devices), "measured"),
        _figure(
            "model TFLOPS",
            tflops(performance.model_flops_per_second_per_device),
            f"per device; {_slowest(performance)} to {_fastest(performance)} from step to step",
            "measured",
        ),
        _figure("MFU", f"{percent(performance.model_flops_utilization)} %", "model FLOPs, of the peak", "measured"),
        *_measured_relation(relation[best.trial.trial_id]),
        _cost(best.trial, performance.tokens_per_second, "measured"),
    )


def _measured_relation(relation: Scaling) -> list[KeyFigure]:
    if relation.speed_up is None or relation.kind == "baseline":
        return []
    if relation.efficiency is not None:
        name, value = f"{relation.kind} scaling efficiency", f"{percent(relation.efficiency)} %"
    else:
        name, value = "against the baseline", f"x {significant(relation.speed_up)}"
    return [_figure(name, value, relation.note, "measured")]


def _slowest(performance: Performance) -> str:
    return significant(_rate(performance, performance.step_seconds_max))


def _fastest(performance: Performance) -> str:
    return significant(_rate(performance, performance.step_seconds_min))


def _rate(performance: Performance, step_seconds: float) -> float:
    return performance.model_flops / performance.num_devices / step_seconds / TERA


def _proxy_figures(best_first: Sequence[TrialReading], results: Sequence[TrialReading]) -> tuple[Block, ...]:
    return (KeyFigures(_measured_figures(best_first[0], results)),) if best_first else ()


def _outside(best: _Best) -> tuple[Paragraph, ...]:
    """On which sides the plan lies outside of what predictions were ever held against."""
    if not best.interval.outside:
        return ()
    return (Paragraph(f"Outside of what was validated: {'; '.join(best.interval.outside)}.", is_caution=True),)
