"""Every trial of the sweep as a row: what was measured, or why nothing was."""

from __future__ import annotations

from collections.abc import Sequence

from conf.units import TERA
from results.report.blocks.charts import MOST_BARS, Spec, bars, distinct_names, quantity
from results.report.blocks.circumstances import facts, incomparable, noise_notes, notes, scaling_table
from results.report.blocks.losses import loss_blocks
from results.report.findings.comparable import named
from results.report.findings.verdict import rate_spread
from results.report.section import Block, Facts, Heading, NamedTable, Paragraph, Plot, ReportSubject, Section
from results.report.table import Cell, ReportTable, number, text
from results.scaling import Scaling, scalings
from results.units import ABSENT, count, gib, percent, seconds, significant, tflops
from sweeps.reading import TrialReading, ranked
from sweeps.trial import SweepRecord
from train_core.measurement import Outcome, Performance

COLUMNS = (
    "#",
    "layout",
    "model TFLOPS",
    "x baseline",
    "outcome",
    "MFU %",
    "efficiency %",
    "step s",
    "spread %",
    "tokens/s",
    "devices",
    "hardware TFLOPS",
    "peak GiB",
    "final loss",
    "cause",
)
NUMERIC = frozenset(COLUMNS) - {"layout", "outcome", "cause"}
NEVER_RAN = (None, Outcome.INFEASIBLE, Outcome.PENDING)


def section(subject: ReportSubject) -> Section | None:
    """The ranked table with what belongs to it, which the page filters and sorts; None of a sweep without trials."""
    record, results = subject.sweep.record, subject.results
    if not results:
        return None
    best_first = ranked(list(results))
    relations = dict(zip((result.trial.trial_id for result in results), scalings(results), strict=True))
    blocks: tuple[Block, ...] = (
        Facts(facts(record, results)),
        *_cautions(record, results),
        *(Paragraph(note) for note in notes(record, results)),
        *_ranking(results, best_first, relations),
        *_against_baseline(best_first, relations),
        *loss_blocks(best_first),
    )
    return Section("trials", "Every trial", "measured", _finding(results), blocks)


def _finding(results: Sequence[TrialReading]) -> str:
    outcomes: dict[str, int] = {}
    for result in results:
        outcomes[_outcome(result)] = outcomes.get(_outcome(result), 0) + 1
    said = ", ".join(f"{number_of} {outcome}" for outcome, number_of in outcomes.items())
    return f"{len(results)} trial{'s' if len(results) > 1 else ''}: {said}."


def _outcome(result: TrialReading) -> str:
    return result.outcome.value.lower().replace("_", " ") if result.outcome else "left out"


def _cautions(record: SweepRecord, results: Sequence[TrialReading]) -> list[Paragraph]:
    """What must be known before these numbers are compared with any other."""
    said = noise_notes([result.performance for result in results if result.performance])
    if record.mode == "proxy" and any(result.performance for result in results):
        said.append(
            "This is a small proxy: its TFLOPS may be compared among themselves, but not with predicted or published"
            " figures, which are about another model on another machine."
        )
    return [Paragraph(sentence, is_caution=True) for sentence in said]


def _ranking(
    results: Sequence[TrialReading], best_first: Sequence[TrialReading], relations: dict[str, Scaling]
) -> tuple[Block, ...]:
    others = sorted((result for result in results if not result.performance), key=_outcome)
    rows = [_row(position, result, relations) for position, result in enumerate(best_first, start=1)]
    rows += [_row(None, result, relations) for result in others]
    marked = frozenset({0}) if best_first else frozenset()
    table = ReportTable(COLUMNS, tuple(rows), NUMERIC, marked, choices=("outcome",))
    explained = (
        "Ranked by model TFLOPS per device. The step is the slowest rank's median; the spread is (slowest - fastest) /"
        " median. x baseline compares tokens per second; efficiency is model TFLOPS per device over the baseline's,"
        " where devices were added."
    )
    if not best_first:
        return (NamedTable("trials", table),)
    caption = (
        "Measured model TFLOPS per device, fastest first; the whiskers reach from the slowest to the fastest timed"
        " step, and the baseline has a colour of its own."
    )
    plot = Plot("measured-rate", caption, _rates(best_first))
    return (Heading("Ranked"), Paragraph(explained), NamedTable("trials", table), plot)


def _row(position: int | None, result: TrialReading, relations: dict[str, Scaling]) -> tuple[Cell, ...]:
    cells = {
        "#": number(ABSENT if position is None else str(position), None if position is None else -position),
        "layout": text(named(result)),
        "outcome": text(_outcome(result)),
        "cause": text(_cause(result)),
    }
    if result.performance:
        cells |= _measured(result.performance, relations[result.trial.trial_id])
    return tuple(cells.get(name, number(ABSENT, None)) for name in COLUMNS)


def _measured(performance: Performance, relation: Scaling) -> dict[str, Cell]:
    spread = (performance.step_seconds_max - performance.step_seconds_min) / performance.step_seconds
    memory = max(performance.peak_memory_bytes, default=None)
    model = performance.model_flops_per_second_per_device
    hardware = performance.hardware_flops_per_second_per_device
    return {
        "model TFLOPS": number(tflops(model), model),
        "x baseline": number(significant(relation.speed_up), relation.speed_up),
        "MFU %": number(percent(performance.model_flops_utilization), performance.model_flops_utilization),
        "efficiency %": number(percent(relation.efficiency), relation.efficiency),
        "step s": number(seconds(performance.step_seconds), performance.step_seconds),
        "spread %": number(percent(spread), spread),
        "tokens/s": number(count(performance.tokens_per_second), performance.tokens_per_second),
        "devices": number(str(performance.num_devices), performance.num_devices),
        "hardware TFLOPS": number(tflops(hardware), hardware),
        "peak GiB": number(gib(memory), memory),
        "final loss": number(significant(performance.final_loss, 4), performance.final_loss),
    }


def _cause(result: TrialReading) -> str:
    """Why it ended as it did, and where its logs are."""
    cause = result.cause
    if not cause and result.steps and result.outcome is Outcome.RUNNING:
        cause = f"step {result.steps[-1].step} of {result.steps[-1].num_steps} done"
    if result.performance or result.outcome in NEVER_RAN:
        return cause
    return f"{cause} (logs: trials/{result.trial.trial_id}/logs)".strip()


def _rates(best_first: Sequence[TrialReading]) -> Spec:
    """Bars with the rates of the slowest and the fastest timed step as whiskers."""
    shown = [(result, result.performance) for result in best_first[:MOST_BARS] if result.performance]
    names = distinct_names([result.label for result, _ in shown])
    values = [
        {"layout": name, "trial": "baseline" if result.trial.is_baseline else "other"} | _rate_values(performance)
        for name, (result, performance) in zip(names, shown, strict=True)
    ]
    spec = bars(values, "rate", "measured model TFLOPS per device", color=_trial_colour())
    whiskers = {"x": quantity("slowest", "measured model TFLOPS per device"), "x2": {"field": "fastest"}}
    spec["layer"].append({"mark": {"type": "rule", "color": "var(--ink)"}, "encoding": whiskers})
    return spec


def _trial_colour() -> Spec:
    return {
        "field": "trial",
        "type": "nominal",
        "title": None,
        "scale": {"domain": ["baseline", "other"], "range": ["var(--accent)", "var(--measured)"]},
    }


def _rate_values(performance: Performance) -> dict[str, float]:
    below, above = rate_spread(performance)
    rate = performance.model_flops_per_second_per_device
    return {"rate": rate / TERA, "slowest": (rate - below) / TERA, "fastest": (rate + above) / TERA}


def _against_baseline(best_first: Sequence[TrialReading], relations: dict[str, Scaling]) -> tuple[Block, ...]:
    if not best_first:
        return ()
    heading = Heading("Scaling against the baseline")
    reasons = tuple(Paragraph(f"No efficiency for {line}.") for line in incomparable(best_first, relations))
    table = scaling_table(best_first, relations)
    if table is None:
        return (heading, Paragraph("No measured trial can be compared with the baseline."), *reasons)
    explained = "Efficiency is model TFLOPS per device over the baseline's; the speed-up compares tokens per second."
    return (heading, Paragraph(explained), NamedTable("scaling", table), *reasons)
