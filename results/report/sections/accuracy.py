"""Predicted against measured: each trial, each term of its step, its memory, and whether the order was right."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from conf.units import TERA, count_of
from results.analysis.accuracy import error_of, error_statistics, rank_correlation
from results.analysis.findings.circumstances import noise_of
from results.analysis.findings.comparable import (
    TERMS,
    Pair,
    breakdown_of,
    display_name,
    measured_terms,
    memory_as_measured,
    pairs,
    predicted_terms,
    step_table,
    term_bars,
    timed_pairs,
)
from results.render.charts import dots, layer, quantity, tooltip
from results.render.section import Block, Heading, NamedTable, Paragraph, Plot, ReportSubject, Section
from results.render.table import Cell, Table, number, text
from results.render.units import ABSENT, error_percent, gib, percent, round_to_digits, seconds, tflops
from sweeps.ranking.points import ranking_of
from sweeps.reading import TrialReading

ABSENT_NUMBER = number(ABSENT, None)
MOST_POINTS = 1000
SQUARE = 380
MEMORY = "memory of the fullest rank"


def section(subject: ReportSubject) -> Section | None:
    """The section on the errors of the cost model; None if no measured trial has a prediction."""
    best_first = ranking_of(subject.results)
    compared = pairs(best_first)
    breakdowns = [result for result in best_first if breakdown_of(result)]
    if not compared and not breakdowns:
        return None
    finding, blocks = _finding(timed_pairs(compared)), tuple(_blocks(subject, compared, breakdowns))
    return Section("accuracy", "Predicted against measured", "measured and predicted", finding, blocks)


def _blocks(subject: ReportSubject, compared: list[Pair], breakdowns: list[TrialReading]) -> Iterator[Block]:
    with_times = timed_pairs(compared)
    if compared:
        if outside := dict.fromkeys(side for pair in with_times for side in pair.interval.outside):
            sides = "; ".join(outside)
            yield Paragraph(f"These predictions lie outside of what was validated: {sides}.", is_caution=True)
        if statistics := _statistics_rows(compared):
            yield NamedTable("prediction-errors", Table.of(statistics, marked=(0,)).without_empty_columns())
        yield Paragraph(_what_is_compared(subject, compared), is_note=True)
        yield from (Paragraph(sentence) for sentence in _order_sentences(with_times))
        if with_times:
            yield _scatter(with_times)
        yield NamedTable("beside", Table.of([_trial_row(pair) for pair in compared], words=("80 % interval s",)))
    if breakdowns:
        yield Heading("Where the step goes")
        yield Paragraph(
            "Measured is the rank with the most work of its own, medians over the timed steps, so that they add up only"
            " nearly; predicted is the slowest stage. A measured wait is what no work hides, and includes waiting for"
            " ranks that come later."
        )
        yield term_bars(breakdowns)
        yield NamedTable("terms-beside", step_table(breakdowns))


def _finding(compared: Sequence[Pair]) -> str:
    errors = error_statistics(_seconds(compared))
    if errors is None:
        return "No measured trial had a device for each of its ranks, so no predicted time is compared with one."
    if errors.count == 1:
        (pair,) = compared
        return (
            f"The one trial that can be compared was predicted at {seconds(pair.predicted.step_seconds)} s a step and"
            f" took {seconds(pair.measured.step_seconds)} s:"
            f" {error_percent(pair.predicted.step_seconds, pair.measured.step_seconds)} %."
        )
    inside = sum(pair.is_inside for pair in compared)
    return (
        f"The predicted step is off by {percent(errors.median)} % in the median of"
        f" {count_of(errors.count, 'trial')} and by {percent(errors.worst)} % at worst, on average"
        f" {percent(abs(errors.bias))} % too {'slow' if errors.bias > 0 else 'fast'}."
        f" {inside} of {count_of(errors.count, 'measured step', 'lies', 'lie')}"
        " in the 80 % interval of their prediction."
    )


def _what_is_compared(subject: ReportSubject, compared: Sequence[Pair]) -> str:
    sentence = (
        "Error: predicted over measured, less one; above zero where the step was predicted to take longer than it did."
        " Bias: the geometric mean of these ratios, less one."
    )
    if subject.sweep.record.mode == "proxy":
        sentence += " These are trials of the proxy, predicted for the machine that measured them."
    left_out = len(compared) - len(timed_pairs(compared))
    if left_out:
        sentence += (
            f" {count_of(left_out, 'measured trial')} whose ranks shared devices can be compared in"
            " memory alone, because the cost model gives each rank a device."
        )
    return sentence


def _order_sentences(compared: Sequence[Pair]) -> Iterator[str]:
    """Sentences on the order of the trials as predicted, and on the rate that following it would have cost."""
    agreement = rank_correlation([_rates(pair) for pair in compared])
    if agreement is not None:
        yield (
            f"Agreement of the two rankings of {agreement.count} trials by rate per device: Kendall's tau"
            f" {agreement.kendall:.2f} (p = {agreement.kendall_chance:.2g}), Spearman's rho {agreement.spearman:.2f}; 1"
            " is the same order, 0 is chance."
        )
    if len(compared) < 2 or noise_of([pair.reading for pair in compared]) is not None:
        return  # of measurements that noise orders, nothing is right or wrong
    these = f"of these {len(compared)} trials"
    best = max(compared, key=lambda pair: pair.measured.model_flops_per_second_per_device)
    chosen = max(compared, key=lambda pair: pair.predicted.model_flops_per_second_per_device)
    if best is chosen:
        yield f"The one {these} that was predicted to be the fastest per device was the fastest: {best.reading.label}."
        return
    lost = 1 - chosen.measured.model_flops_per_second_per_device / best.measured.model_flops_per_second_per_device
    yield (
        f"Following the prediction would have cost {percent(lost)} % of the rate: {these}, {chosen.reading.label} was"
        f" predicted to be the fastest per device, and {best.reading.label} was."
    )


def _statistics_rows(compared: Sequence[Pair]) -> list[dict[str, Cell]]:
    """The step, each of its terms where it was broken down, and memory."""
    with_times = timed_pairs(compared)
    quantities: list[tuple[str, list[tuple[float, float]]]] = [("step", _seconds(with_times))]
    quantities += [(name, _pairs_of_term(with_times, index)) for index, name in enumerate(TERMS)]
    quantities.append((MEMORY, _memory(compared)))
    rows = []
    for name, values in quantities:
        if (errors := error_statistics(values)) is not None:
            share = _share(name, with_times)
            sizes = {f"{what} error %": getattr(errors, what) for what in ("median", "mean", "worst")}
            row = {"quantity": text(name), "trials": number(str(errors.count), errors.count)}
            row |= {head: number(percent(size), size) for head, size in sizes.items()}
            row["bias %"] = number(f"{100 * errors.bias:+.1f}", errors.bias)
            rows.append(row | {"share of step %": number(percent(share), share)})
    return rows


def _share(name: str, compared: Sequence[Pair]) -> float | None:
    """The median share of the measured step that a term takes, which says how much its error matters."""
    if name not in TERMS:
        return None
    index = TERMS.index(name)
    terms = [measured_terms(pair.measured.breakdown.slowest) for pair in compared if pair.measured.breakdown]
    shares = [value / sum(part or 0.0 for part in of_step) for of_step in terms if (value := of_step[index])]
    return statistics.median(shares) if shares else None


def _trial_row(pair: Pair) -> dict[str, Cell]:
    measured = pair.measured
    expected, memory = memory_as_measured(pair.reading.trial), max(measured.peak_memory_bytes, default=None)
    predicted, error, interval, is_inside, rate = _predicted_cells(pair)
    measured_rate = measured.model_flops_per_second_per_device
    return {
        "layout": text(display_name(pair.reading)),
        "step s predicted": predicted,
        "step s measured": number(seconds(measured.step_seconds), measured.step_seconds),
        "error %": error,
        "80 % interval s": interval,
        "inside": is_inside,
        "TFLOPS predicted": rate,
        "TFLOPS measured": number(tflops(measured_rate), measured_rate),
        "GiB predicted": number(gib(expected), expected),
        "GiB measured": number(gib(memory), memory),
        "GiB error %": number(error_percent(expected, memory), error_of(expected, memory)) if memory else ABSENT_NUMBER,
    }


def _predicted_cells(pair: Pair) -> tuple[Cell, Cell, Cell, Cell, Cell]:
    """Seconds, their error, their interval, whether it held, and the rate; nothing where ranks shared a device."""
    if not timed_pairs([pair]):
        return ABSENT_NUMBER, ABSENT_NUMBER, ABSENT_NUMBER, text(ABSENT), ABSENT_NUMBER
    step, measured, rate = pair.predicted.step_seconds, pair.measured.step_seconds, _rates(pair)[0]
    low, high = pair.interval.low_seconds, pair.interval.high_seconds
    error = number(error_percent(step, measured), error_of(step, measured))
    interval = Cell(f"{seconds(low)} to {seconds(high)}", low)
    is_inside = text("yes" if pair.is_inside else "no")
    return number(seconds(step), step), error, interval, is_inside, number(tflops(rate), rate)


def _scatter(compared: Sequence[Pair]) -> Plot:
    """Rates and not seconds, because trials of different batches have steps of different length."""
    points = [_point(pair) for pair in compared[:MOST_POINTS]]
    left_out = f" The {MOST_POINTS} fastest of {len(compared)}." if len(compared) > MOST_POINTS else ""
    rates = [rate for point in points for rate in (point["predicted"], point["measured"])]
    limits = [0.95 * min(rates), 1.05 * max(rates)]
    equal = [{"predicted": limit, "measured": limit} for limit in limits]
    kind = {"type": "log"} if limits[1] > 10 * limits[0] else {"type": "linear", "zero": False}
    scale = kind | {"domain": limits, "nice": False}
    x = quantity("predicted", "predicted model TFLOPS per device", scale=scale)
    y = quantity("measured", "measured model TFLOPS per device", scale=scale)
    shown = tooltip("layout", "predicted", "measured", "error")
    return Plot(
        "predicted-measured",
        "Every point is a trial. On the dashed line, what was predicted was measured; above it the trial was faster"
        f" than predicted.{left_out}",
        {
            "layer": [
                layer({"type": "line", "strokeDash": [4, 4], "color": "var(--soft)"}, equal, x=x, y=y),
                layer(dots(70), points, x=x, y=y, tooltip=shown),
            ],
            "height": SQUARE,
            "width": SQUARE,
        },
    )


def _point(pair: Pair) -> dict[str, Any]:
    predicted, measured = (rate / TERA for rate in _rates(pair))
    error = error_percent(pair.predicted.step_seconds, pair.measured.step_seconds)
    shown = {"predicted": round_to_digits(predicted), "measured": round_to_digits(measured)}
    return {"layout": display_name(pair.reading), **shown, "error": f"{error} % of the step"}


def _seconds(compared: Sequence[Pair]) -> list[tuple[float, float]]:
    return [(pair.predicted.step_seconds, pair.measured.step_seconds) for pair in compared]


def _rates(pair: Pair) -> tuple[float, float]:
    predicted, measured = pair.predicted, pair.measured
    return predicted.model_flops_per_second_per_device, measured.model_flops_per_second_per_device


def _pairs_of_term(compared: Sequence[Pair], index: int) -> list[tuple[float, float]]:
    """Predicted and measured seconds of one term, of the trials where both are known."""
    seconds = []
    for pair in compared:
        breakdown = pair.measured.breakdown
        measured = measured_terms(breakdown.slowest)[index] if breakdown else None
        if measured is not None:
            seconds.append((predicted_terms(pair.predicted.step_terms)[index], measured))
    return seconds


def _memory(compared: Sequence[Pair]) -> list[tuple[float, float]]:
    """Predicted and measured bytes of the fullest rank, of the trials that measured them."""
    return [
        (memory_as_measured(pair.reading.trial), max(pair.measured.peak_memory_bytes))
        for pair in compared
        if pair.measured.peak_memory_bytes
    ]
