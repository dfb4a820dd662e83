"""The answer of a sweep in one sentence, how sure it is, and where it is not sure, what would decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from conf.nearest import listed, nearest
from conf.overrides import command_line
from conf.types.sweep_spec import figure_name
from conf.units import TRILLION, count_of
from results.analysis.findings.circumstances import noise_of
from results.analysis.findings.objective import aside_sentence, sought_sentences, sweep_with, words_of
from results.analysis.findings.ranking import efficiency_text, relations_of_points
from results.analysis.footprint import declared_footprint
from results.analysis.scaling import Scaling, ScalingStudy, measured_study
from results.render.units import ABSENT, count, in_three_digits, percent, seconds, share_of_peak, significant, tflops
from sweeps.ranking.disturbed import of_other_models
from sweeps.ranking.points import MeasuredPoint, measured_points, ranked_points, rivals_of_first
from sweeps.reading import CANCELLED_BY_NAME, TrialReading
from sweeps.trial import SweepRecord
from train_core.trial.measurement import LIVE, Outcome

MOST_NAMED = 3


class SweepVerdict(NamedTuple):
    """The answer of a sweep.

    Attributes:
        headline: what it is, in one sentence that is understood alone. Text between backticks is a command.
        figures: those of the fastest layout, where the headline does not hold them.
        details: which others may be as fast, and what else must be known, a sentence or two each.
        advice: how sure it is, and what would decide or is to be done next.
    """

    headline: str
    figures: str = ""
    details: tuple[str, ...] = ()
    advice: str = ""

    @property
    def paragraphs(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.headline, self.figures, *self.details, self.advice)))


def words_of_sweep(record: SweepRecord, further_words: Sequence[str]) -> str:
    """The words by which a command takes the same points of the same sweep."""
    return command_line([record.name, *record.overrides, *further_words])


def verdict(
    record: SweepRecord, results: Sequence[TrialReading], further_words: Sequence[str] = (), ended: str = ""
) -> SweepVerdict:
    """The sentences on the fastest layout, or, when nothing was measured, on what to do.

    Args:
        ended: the limit that has ended the sweep while trials were left; else empty.
    """
    where = words_of_sweep(record, further_words)
    num_live = sum(result.outcome in LIVE for result in results)
    if points := ranked_points(results):
        by_rate = record.seeks_rate
        answer = _answer(record, results, points, where) if by_rate else _objective_verdict(record, results, where)
        answer = answer._replace(details=(*answer.details, *_other_code(results, where)))
        unfinished = f"The sweep is not finished: {count_of(num_live, 'trial', 'has', 'have')} not ended."
        if ended:
            unfinished = f"The sweep has ended, and {count_of(num_live, 'trial', 'was', 'were')} not run: {ended}."
        return answer._replace(details=(*answer.details, unfinished)) if num_live else answer
    if num_live and ended:
        again = f"`trisweep sweep {where}` with a higher limit goes on."
        if " failed" in ended or "no trial counts" in ended:  # a limit of failures, or a mistake that all share
            again = f"Correct that, and `trisweep sweep {where} --retry-failed` goes on."
        return SweepVerdict(f"Nothing was measured, and the sweep has ended: {ended}. {again}")
    if num_live:
        return SweepVerdict(
            f"Nothing has been measured yet: {count_of(num_live, 'trial', 'has', 'have')} not ended."
            f" See `trisweep status {where}`, and write this report again when some have ended."
        )
    has_failed = any(result.measurement is not None for result in results)
    was_cancelled = any(result.outcome is Outcome.CANCELLED for result in results)
    if was_cancelled and all(each.outcome is Outcome.CANCELLED for each in results if each.measurement is not None):
        return SweepVerdict(_all_cancelled(results, where))
    return SweepVerdict(
        f"Nothing was measured: every trial failed or cannot run. `trisweep status {where}` shows the causes; fix the"
        f" first one and run `trisweep sweep {where}{' --retry-failed' if has_failed else ''}`."
    )


def _all_cancelled(results: Sequence[TrialReading], where: str) -> str:
    """The sentences on a sweep of which nothing failed, but trials were cancelled, and what runs them again."""
    causes = [result.cause for result in results if result.outcome is Outcome.CANCELLED]
    number = count_of(len(causes), "trial", "was", "were")
    said = f"Nothing was measured: {number} cancelled ({listed(list(dict.fromkeys(causes)), MOST_NAMED)})."
    if all(cause == CANCELLED_BY_NAME for cause in causes):
        return said
    return f"{said} `trisweep sweep {where}` runs what was cancelled; raise the limit that has passed, if one has."


def _other_code(results: Sequence[TrialReading], where: str) -> tuple[str, ...]:
    """A sentence on points that were measured with other code than the newest one alone; none where there is none."""
    found = [each for each in results if each.performance and each.code and not each.trial.stage]
    aside = of_other_models(results)
    measured = [each for each in found if each.trial.trial_id not in aside]
    newest = max(measured, key=lambda each: each.end_time or 0.0, default=None)
    if newest is None:
        return ()
    present = {each.trial.mark for each in measured if each.code == newest.code}
    others = [each for each in measured if each.trial.mark not in present]
    if not others:
        return ()
    names = listed([each.title for each in others], MOST_NAMED)
    return (
        f"{len(others)} of {count_of(len(measured), 'trial')} ran other code of the trainer than {newest.title}, the"
        f" last one, and may not compare with it: {names}. `trisweep sweep {where} --remeasure` measures every point"
        " with the present code.",
    )


def _objective_verdict(record: SweepRecord, results: Sequence[TrialReading], where: str) -> SweepVerdict:
    """The answer of a sweep that seeks something else than the highest rate."""
    headline, others, sureness = sought_sentences(record, results, where)
    if not headline:
        words, advice = " and ".join(map(words_of, record.objective)), ""
        # Where later stages measured figures of which none is sought, as of a name that was misspelt, they are named.
        known = list(dict.fromkeys(name for result in results for name in (*result.figures, *result.metrics)))
        sought = [name for name in map(figure_name, record.objective) if name is not None and name not in known]
        if known and sought:
            advice = f"What was measured is {', '.join(known)}. {nearest(sought[0], known)}"
        says = f"No trial has measured {words} yet, which the sweep seeks (search.objective)."
        return SweepVerdict(says, advice=advice)
    return SweepVerdict(headline, "", (others,) if others else (), sureness)


def _answer(
    record: SweepRecord, results: Sequence[TrialReading], points: Sequence[MeasuredPoint], where: str
) -> SweepVerdict:
    """The answer of a sweep that seeks the highest rate, of which `points` have a place."""
    if study := measured_study(record, results):
        return SweepVerdict(study_sentence(study, noise_of(results)))
    best, rivals, noise = points[0], rivals_of_first(points), noise_of(results)
    relation = relations_of_points(points, results)[best.middle.trial.trial_id]
    experiment, dollars = best.middle.experiment, None
    if record.mode == "cluster" and experiment:  # a trillion tokens of a small stand-in would say nothing
        dollars = declared_footprint(experiment, best.performance).dollars(TRILLION)
    figures = _figures(best, relation, noise, dollars)
    set_aside = aside_sentence({each.name: each.aside for each in measured_points(results)})
    further = tuple(filter(None, (*_best_by_size(points), set_aside)))
    if not rivals:
        return SweepVerdict(f"Fastest per device: {best.name} with {figures}.", "", further, _sure(best, points))
    loudness = f", noise x{significant(noise, 2)}" if noise else ""
    headline = f"No clear winner{loudness}: {best.name} had the highest rate per device, and {_counted(best, rivals)}"
    headline += " may be as fast."
    names = listed([f"{rival.name} ({_range(rival)})" for rival in rivals], MOST_NAMED)
    details = (f"May be as fast: {names}.", *further)
    return SweepVerdict(headline, f"{best.name}: {figures}.", details, _decision(where, points))


def _counted(best: MeasuredPoint, rivals: Sequence[MeasuredPoint]) -> str:
    """The number of rivals; those that were disturbed apart, as they share no place with a best that was not."""
    apart = 0 if best.disturbed else sum(bool(rival.disturbed) for rival in rivals)
    steady = len(rivals) - apart
    others = [count_of(steady, "other")] * (steady > 0)
    return " and ".join(others + [f"{apart} that {'was' if apart == 1 else 'were'} disturbed"] * (apart > 0))


def study_sentence(study: ScalingStudy, noise: float | None) -> str:
    last = study.last
    varied = "the peaks that were measured with the runs vary by as much."
    loudness = f" Noise x{significant(noise, 2)}: {varied}" if noise else ""
    shared = [str(point.num_ranks) for point in study.points if point.shares_devices]
    note = f" ({' and '.join(shared)} ranks shared {count_of(last.num_devices, 'device')})" if shared else ""
    if last.factor == 1:
        only = f"nothing was measured on more devices than the baseline's{note}"
        alone = "only the baseline was measured"
        return f"{study.kind.capitalize()} scaling: {only if shared else alone}.{loudness}"
    return (
        f"{study.kind.capitalize()} scaling: {count(last.num_devices)} devices keep {percent(last.efficiency)} % of the"
        f" baseline's rate per device, between {percent(last.efficiency_low)} and {percent(last.efficiency_high)} %"
        f" with 95 % confidence, after {count_of(last.num_runs, 'run')}{note}.{loudness}"
    )


def predicted_study_sentence(study: ScalingStudy) -> str:
    first, last = study.points[0], study.last
    return (
        f"Predicted: {study.kind} scaling from {count(first.num_devices)} to {count(last.num_devices)} devices keeps"
        f" {percent(last.efficiency)} % of the rate per device, as {last.label} with a step every"
        f" {seconds(last.step_seconds)} s."
    )


def _figures(point: MeasuredPoint, relation: Scaling, noise: float | None, dollars: float | None) -> str:
    """The figures of a layout: TFLOPS with their interval, MFU and of which peak, efficiency and cost."""
    performance = point.performance
    peak = f"{tflops(performance.peak_flops_per_second)} TFLOPS" + (" as measured with this run" if noise else "")
    parts = [f"{tflops(point.values[0])} model TFLOPS per device ({_range(point)})"]
    if (share := share_of_peak(performance.model_flops_utilization)) != ABSENT:
        parts.append(f"MFU {share} % (of a peak of {peak})")
    parts.append(f"a step every {seconds(performance.step_seconds)} s")
    if relation.speed_up is not None and relation.kind != "baseline":
        of = f" ({relation.kind} scaling: {efficiency_text(relation)} %)" if relation.efficiency else ""
        parts.append(f"x{significant(relation.speed_up)} the baseline's tokens/s{of}")
    if dollars is not None:
        parts.append(f"${in_three_digits(dollars)} for a trillion tokens")
    return ", ".join(parts)


def _range(point: MeasuredPoint) -> str:
    low, high = point.bounds
    return f"{tflops(low)} to {tflops(high)}"


def _sure(best: MeasuredPoint, points: Sequence[MeasuredPoint]) -> str:
    """A sentence on how sure it is that no other point is faster."""
    if len(points) == 1:
        return "Nothing else was measured."
    runs = count_of(best.seconds.num_runs, "run")
    others = "that of the other" if len(points) == 2 else f"those of all {len(points) - 1} others"
    return f"Its interval lies above {others} ({runs}; {best.seconds.method})."


def _decision(where: str, points: Sequence[MeasuredPoint]) -> str:
    """The measurements that would decide between points whose intervals overlap."""
    most = max(point.seconds.num_runs for point in points)
    return (
        f"Intervals are {points[0].seconds.method}. `{sweep_with(where, {'search.max_rounds': most + 2})}`"
        f" measures the leaders further; on a quieter machine `trisweep sweep {where} --remeasure` measures"
        " every point again."
    )


def _best_by_size(points: Sequence[MeasuredPoint]) -> tuple[str, ...]:
    """The best layout for each number of devices, because few devices are easily faster per device than many."""
    best: dict[int, MeasuredPoint] = {}
    for point in points:
        best.setdefault(point.performance.num_devices, point)
    if len(best) < 2:
        return ()
    named = [
        f"on {size}, {point.name} ({count(point.performance.tokens_per_second)} tokens/s)"
        for size, point in sorted(best.items())
    ]
    return (f"Highest rate per device, by number of devices: {'; '.join(named)}.",)
