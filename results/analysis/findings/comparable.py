"""The parts of a trial's prediction beside those of its measurement, and the time of a step as a table and as bars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from conf.units import MILLI
from costs import Estimate, StepTime
from costs.axes import PREDICTED_TERMS
from results.render.charts import category, quantity, tooltip
from results.render.section import Plot
from results.render.table import Table, number, text
from results.render.units import round_to_digits, seconds
from sweeps.confidence import Interval, interval_of
from sweeps.reading import TrialReading
from sweeps.trial import Trial
from train_core.trial.measurement import Breakdown, Outcome, Performance, StepTerms

MOST_DRAWN = 12
ROW_HEIGHT = 38
TERMS = ("compute", "tensor parallel", "pipeline and bubble", "data parallel", "waiting for all ranks", "optimizer")
"""In the order of `StepTerms`."""
TERM_COLUMNS = ("compute s", "tensor s", "pipeline s", "data s", "all ranks s", "optimizer s")


@dataclass(frozen=True)
class Pair:
    """A trial that was both predicted and measured."""

    reading: TrialReading
    predicted: Estimate
    measured: Performance

    @cached_property
    def interval(self) -> Interval:
        """The interval in which the measured step was expected to lie."""
        return interval_of(self.reading.planned, self.predicted.implementation, self.predicted)

    @property
    def is_inside(self) -> bool:
        return self.interval.low_seconds <= self.measured.step_seconds <= self.interval.high_seconds


def pairs(results: Sequence[TrialReading]) -> list[Pair]:
    """The trials that were predicted and measured, in the order of `results`."""
    return [
        Pair(result, result.trial.estimate, result.performance)
        for result in results
        if result.trial.estimate and result.performance
    ]


def timed_pairs(compared: Sequence[Pair]) -> list[Pair]:
    """Return the pairs whose measured time may be compared with the predicted one, as no ranks shared a device."""
    return [pair for pair in compared if not pair.reading.shares_devices]


def memory_as_measured(trial: Trial) -> int:
    """The predicted memory that corresponds to the measured one: on a GPU torch counts its tensors alone."""
    predicted, on_gpu = trial.predicted, trial.planned.cluster.device.kind == "gpu"
    return predicted.allocated_bytes if on_gpu else predicted.peak_memory_bytes


def predicted_terms(time: StepTime) -> tuple[float, ...]:
    seconds = time.by_term()
    return tuple(sum(seconds[name] for name in PREDICTED_TERMS[measured]) for measured in StepTerms.model_fields)


def measured_terms(terms: StepTerms) -> tuple[float | None, ...]:
    return tuple(getattr(terms, name) for name in StepTerms.model_fields)


def outcome_words(outcome: Outcome | None) -> str:
    return outcome.value.lower().replace("_", " ") if outcome else "left out"


def display_name(result: TrialReading) -> str:
    return result.label + (" (baseline)" if result.trial.is_baseline else "")


def step_table(breakdowns: Sequence[TrialReading]) -> Table:
    """Two rows for a trial; ranks that shared a device have no predicted one."""
    rows = []
    for result in breakdowns:
        for kind, whose, terms in _terms_by_kind(result):
            # A term that is not known is part of another one, so the sum is still complete.
            values = {**dict(zip(TERM_COLUMNS, terms, strict=True)), "sum s": sum(value or 0.0 for value in terms)}
            named = {"layout": text(display_name(result)), "seconds are": text(kind), "of": text(whose)}
            rows.append(named | {name: number(seconds(value), value) for name, value in values.items()})
    return Table.of(rows)


def _terms_by_kind(result: TrialReading) -> Iterator[tuple[str, str, tuple[float | None, ...]]]:
    """The kind of seconds, of which stage or rank, and the seconds; predicted ones only if no ranks shared a device."""
    breakdown = breakdown_of(result)
    assert breakdown is not None
    for pair in timed_pairs(pairs([result])):
        yield "predicted", "the slowest stage", predicted_terms(pair.predicted.step_terms)
    whose = f"rank {breakdown.slowest_rank} of {len(breakdown.ranks)}"
    yield "measured", whose, measured_terms(breakdown.slowest)


def term_bars(breakdowns: Sequence[TrialReading]) -> Plot:
    """Plot where a step goes, for each sequence of its batch, so that different batches share one axis."""
    values = [value for result in breakdowns[:MOST_DRAWN] for value in _term_values(result)]
    of = f" The {MOST_DRAWN} fastest of {len(breakdowns)}." if len(breakdowns) > MOST_DRAWN else ""
    return Plot(
        "terms-beside",
        f"Milliseconds of a step for each sequence of its batch, by what they are spent on.{of}",
        {
            "data": {"values": values},
            "mark": "bar",
            "encoding": {
                # Rows and no facets, since only a single view can fill the width of the page.
                "y": category("row", sort=None, axis={"labelExpr": "split(datum.label, '|')", "labelLimit": 0}),
                "x": quantity("ms", "ms per sequence", stack="zero"),
                "color": category("term", sort=list(TERMS)),
                "order": {"field": "order", "type": "quantitative"},
                "tooltip": tooltip("layout", "seconds are", "term", "ms"),
            },
            "height": ROW_HEIGHT * len({value["row"] for value in values}),
        },
    )


def _term_values(result: TrialReading) -> Iterator[dict[str, Any]]:
    for kind, _, terms in _terms_by_kind(result):
        for order, (name, term) in enumerate(zip(TERMS, terms, strict=True)):
            if term:
                yield {
                    "row": f"{display_name(result)}|{kind}",
                    "layout": display_name(result),
                    "seconds are": kind,
                    "term": name,
                    "ms": round_to_digits(term / result.planned.batch.global_batch_size / MILLI),
                    "order": order,
                }


def breakdown_of(result: TrialReading) -> Breakdown | None:
    return result.performance.breakdown if result.performance else None
