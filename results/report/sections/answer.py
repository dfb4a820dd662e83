"""The first screen: the answer at full size, how sure it is, and what was measured here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conf.units import TERA, TRILLION, count_of
from results.analysis.findings.objective import value_text, words_of
from results.analysis.findings.ranking import best_on_paper, efficiency_text, num_devices, relations_of_points
from results.analysis.findings.verdict import SweepVerdict, predicted_study_sentence, verdict, words_of_sweep
from results.analysis.footprint import Footprint, declared_footprint
from results.analysis.own_level import at_own_level
from results.analysis.scaling import Scaling, ScalingStudy, measured_study, predicted_study
from results.render.legend import legend
from results.render.section import Block, Heading, KeyFigure, KeyFigures, NumbersAre, Paragraph, ReportSubject, Section
from results.render.units import in_three_digits, percent, seconds, share_of_peak, significant, tflops
from results.report.sections.provenance import folder_words, job_words
from sweeps.confidence import Interval, interval_of
from sweeps.folder.journal import History
from sweeps.ranking.disturbed import MEASURED_PEAK
from sweeps.ranking.points import MeasuredPoint, ranked_points, sought_points
from sweeps.reading import TrialReading
from sweeps.trial import SweepRecord, Trial


@dataclass(frozen=True)
class _PredictedBest:
    """The predicted plan that answers the question, and the baseline's prediction on as many devices."""

    trial: Trial
    interval: Interval
    baseline: Trial | None


def section(subject: ReportSubject) -> Section:
    """Return the sweep's answer. There is always one, even if it is that nothing is known yet."""
    record, results = subject.sweep.record, subject.results
    found_by = (*job_words(subject.sweep.folder), *folder_words(subject.sweep.folder))
    measured = SweepVerdict("Nothing was measured: this sweep has no trials.")
    if results:
        ended = History.kept_in(subject.sweep.folder).why_cut_short([each.outcome for each in results])
        measured = verdict(record, results, found_by, ended)
    points, best = ranked_points(results), _best(record)
    if not record.seeks_rate:
        figures = _sought_figures(record, results)
        shown = (KeyFigures(figures),) if figures else ()
        return _answer("measured", measured.headline, *shown, *_verdict_paragraphs(measured))
    predicted = _predicted_sentence(record, best, found_by) + _forecast(best, results)
    if points and (record.mode == "cluster" or not record.plan):
        return _measured_answer(subject, measured, points, predicted)
    if best is None:  # no planned point is predicted to run, or nothing was planned and nothing measured
        rest = _verdict_paragraphs(measured)
        if not record.plan:
            return _answer("measured", measured.headline, *rest)
        return _answer("predicted", predicted, Paragraph(measured.headline), *rest)
    return _predicted_answer(record, measured, best, predicted)


def _answer(numbers_are: NumbersAre, finding: str, *blocks: Block) -> Section:
    return Section("answer", "The answer", numbers_are, finding, blocks)


def _measured_answer(
    subject: ReportSubject, measured: SweepVerdict, points: Sequence[MeasuredPoint], predicted: str
) -> Section:
    """Return the answer that trials gave: at full size, or of a proxy if nothing was planned for the full size."""
    record, results = subject.sweep.record, subject.results
    study, is_proxy = measured_study(record, results), record.mode == "proxy"
    figures = _study_figures(study) if study else _measured_figures(points, results, is_proxy=is_proxy)
    blocks = (KeyFigures(figures), *_verdict_paragraphs(measured))
    if is_proxy:
        return _answer("measured", measured.headline, *blocks)
    return _answer("measured and predicted", measured.headline, *blocks, Paragraph(predicted))


def _predicted_answer(record: SweepRecord, measured: SweepVerdict, best: _PredictedBest, predicted: str) -> Section:
    # Of a proxy, the heading says that it is one.
    model = next((trial.experiment.model.name for trial in record.trials if trial.experiment), None)
    proxy = "" if record.mode == "cluster" or model is None else f", with the proxy {model}"
    here = (Heading(f"Measured here{proxy}"), Paragraph(measured.headline), *_verdict_paragraphs(measured))
    blocks: list[Block] = [KeyFigures(_predicted_figures(record, best))]
    if best.interval.outside:
        sides = "; ".join(best.interval.outside)
        blocks.append(Paragraph(f"This prediction lies outside of what was validated: {sides}.", is_caution=True))
    return _answer("measured and predicted", predicted, *blocks, *here)


def _verdict_paragraphs(measured: SweepVerdict) -> tuple[Block, ...]:
    """The sentences of the verdict beside its headline and the figures, which stand on the page or in the table."""
    return tuple(Paragraph(sentence) for sentence in (*measured.details, measured.advice) if sentence)


def layouts(record: SweepRecord) -> tuple[tuple[str, str], ...]:
    by_layout = any(labels.names_layouts for labels in (record.labels, record.plan_labels))
    setups = (trial.experiment for trial in (*record.plan, *record.trials) if trial.experiment and by_layout)
    return (*legend(setups), *dict.fromkeys((*record.labels.legend, *record.plan_labels.legend)))


def _predicted_sentence(record: SweepRecord, best: _PredictedBest | None, found_by: Sequence[str]) -> str:
    """The plan that the cost model finds fastest, or why there is none."""
    if best is None:
        return "No full-size point was predicted." if not record.plan else "No full-size point fits."
    if study := predicted_study(record, record.plan):
        return predicted_study_sentence(study)
    experiment, estimate = best.trial.planned, best.trial.predicted
    low, high = _expected_rates(best)
    label, again = record.plan_label_of(best.trial), words_of_sweep(record, found_by)
    kind = "" if experiment.mixed else f" ({experiment.cluster.device.name})"
    devices = f"{count_of(num_devices(best.trial), 'device')}{kind} of {experiment.place}"
    return (
        f"Predicted: of {len(record.plan)} listed points, {experiment.model.name} trains fastest on {devices} as"
        f" `{label}`, with {tflops(estimate.model_flops_per_second_per_device)} model TFLOPS per device"
        f" ({low} to {high} with 80 % probability), {percent(estimate.model_flops_utilization)} % of the peak, and a"
        f" step every {seconds(estimate.step_seconds)} s. {best.interval.in_words} `trisweep plan {again} --search`"
        " looks at every plan."
    )


def _forecast(best: _PredictedBest | None, results: Sequence[TrialReading]) -> str:
    """What is to be expected of the same plan once finished trials have shown their level; empty where none has."""
    if best is None or (moved := at_own_level(best.trial, results)) is best.trial:
        return ""
    estimate = moved.predicted
    interval = interval_of(moved.planned, estimate.implementation, estimate)
    low, high = _expected_rates(_PredictedBest(moved, interval, None))
    return (
        f" {interval.in_words.split(':')[0]}, {seconds(estimate.step_seconds)} s a step and"
        f" {tflops(estimate.model_flops_per_second_per_device)} model TFLOPS per device are expected ({low} to {high}"
        " with 80 % probability)."
    )


def _expected_rates(best: _PredictedBest) -> tuple[str, str]:
    """The interval of the prediction in TFLOPS per device."""
    work = best.trial.predicted.model_flops_per_second_per_device * best.trial.predicted.step_seconds / TERA
    return significant(work / best.interval.high_seconds), significant(work / best.interval.low_seconds)


def _best(record: SweepRecord) -> _PredictedBest | None:
    trial = best_on_paper(record)
    if trial is None or trial.estimate is None or trial.experiment is None:
        return None
    baseline = next((other for other in record.plan if other.is_baseline and other.estimate), None)
    is_alike = baseline is not None and num_devices(baseline) == num_devices(trial)
    interval = interval_of(trial.planned, trial.predicted.implementation, trial.predicted)
    return _PredictedBest(trial, interval, baseline if is_alike else None)


def _predicted_figures(record: SweepRecord, best: _PredictedBest) -> tuple[KeyFigure, ...]:
    estimate, experiment = best.trial.predicted, best.trial.planned
    low, high = _expected_rates(best)
    rate, peak = estimate.model_flops_per_second_per_device, significant(estimate.peak_flops_per_second / TERA, 4)
    figures = [
        _figure("model TFLOPS per device", tflops(rate), f"{low} to {high} with 80 % probability"),
        _figure("MFU", f"{percent(estimate.model_flops_utilization)} %", f"of {peak} TFLOPS, the dense peak"),
    ]
    if best.baseline is not None and best.baseline.trial_id != best.trial.trial_id:
        faster = estimate.tokens_per_second / best.baseline.predicted.tokens_per_second
        sure = "less" if best.interval.rivals > faster - 1 else "more"
        name = record.plan_label_of(best.baseline)
        note = f"baseline: {name}. The difference is {sure} than predictions err between plans."
        figures.append(_figure("tokens/s over the baseline's", f"x {significant(faster)}", note))
    return (*figures, _cost(declared_footprint(experiment, estimate)))


def _figure(name: str, value: str, note: str, kind: NumbersAre = "predicted") -> KeyFigure:
    return KeyFigure(name, value, note, kind)


def _cost(takes: Footprint) -> KeyFigure:
    """The cost of a trillion tokens, without energy and carbon, which have a section of their own."""
    dollars = takes.dollars(TRILLION)
    money = "no price is declared" if dollars is None else f"${in_three_digits(dollars)}"
    note = f"{in_three_digits(takes.days(TRILLION))} days on {count_of(takes.num_devices, 'device')}; {money}"
    hours = in_three_digits(takes.device_hours(TRILLION))
    return _figure("a trillion tokens", f"{hours} device-hours", note, takes.time_is)


def _study_figures(study: ScalingStudy) -> tuple[KeyFigure, ...]:
    """Return the share of the baseline's rate that the most devices keep, and what that comes to."""
    last, base = study.last, study.points[0]
    grown = f"{count_of(base.num_devices, 'device')} to {last.num_devices:,}"
    interval = f"{percent(last.efficiency_low)} to {percent(last.efficiency_high)} % with 95 % confidence"
    name = f"{study.kind} scaling efficiency"
    return (
        _figure(name, f"{percent(last.efficiency)} %", f"{grown}; {interval}", "measured"),
        _figure("speed-up", f"x {significant(last.speed_up)}", f"tokens/s, {grown}", "measured"),
        _figure("MFU", f"{percent(last.utilization)} %", f"of the baseline {percent(base.utilization)} %", "measured"),
    )


def _measured_figures(
    points: Sequence[MeasuredPoint], results: Sequence[TrialReading], *, is_proxy: bool
) -> tuple[KeyFigure, ...]:
    best = points[0]
    performance, experiment = best.performance, best.middle.planned
    relation = relations_of_points(points, results)[best.middle.trial.trial_id]
    low, high = map(tflops, best.bounds)
    peak = f"of {significant(performance.peak_flops_per_second / TERA, 4)} TFLOPS, the peak"
    beside = " measured beside it" if performance.peak_source == MEASURED_PEAK else ""
    mfu = f"{share_of_peak(performance.model_flops_utilization)} %"
    return (
        _figure("model TFLOPS per device", tflops(best.values[0]), f"interval {low} to {high}", "measured"),
        _figure("MFU", mfu, f"{peak}{beside}", "measured"),
        *_measured_relation(relation),
        # A trillion tokens of a small stand-in would say nothing.
        *([] if is_proxy else [_cost(declared_footprint(experiment, performance))]),
    )


def _measured_relation(relation: Scaling) -> list[KeyFigure]:
    if relation.speed_up is None or relation.kind == "baseline":
        return []
    name, value = "tokens/s over the baseline's", f"x {significant(relation.speed_up)}"
    if relation.efficiency is not None:
        name, value = f"{relation.kind} scaling efficiency", f"{efficiency_text(relation)} %"
    return [_figure(name, value, relation.note, "measured")]


def _sought_figures(record: SweepRecord, results: Sequence[TrialReading]) -> tuple[KeyFigure, ...]:
    """The value of each objective that the best point reached, and of one alone the next's; none where all diverged."""
    points = [point for point in sought_points(record, results) if point.may_be_best]
    if not points:
        return ()
    # The next by the first of several objectives says nothing of the others.
    best, following = points[0], points[1] if len(points) > 1 and len(record.objective) == 1 else None
    return tuple(
        _figure(
            words_of(objective),
            value_text(objective, best.values[place]),
            f"{best.name}; next {value_text(objective, following.values[place])}" if following else best.name,
            "measured",
        )
        for place, objective in enumerate(record.objective)
    )
