"""Every trial of the sweep as a row: what was measured, or why nothing was; and the training losses that came of it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from conf.grouped import grouped
from conf.nearest import listed
from conf.plan.experiment import Experiment
from conf.units import TERA, count_of
from results.analysis.findings.circumstances import facts, incomparable, noise_notes, notes
from results.analysis.findings.comparable import display_name, outcome_words
from results.analysis.findings.ranking import measured_cells, relations_of_points
from results.analysis.scaling import Scaling
from results.render.charts import MOST_BARS, Spec, bars, category, layer, quantity
from results.render.section import Block, FactList, Heading, NamedTable, Paragraph, Plot, ReportSubject, Section
from results.render.table import FIRST_ROWS, Cell, Table, number, text
from results.render.units import ABSENT, round_to_digits, significant
from sweeps.labels import distinct_names
from sweeps.ranking.points import MeasuredPoint, measured_points, places
from sweeps.reading import TrialReading
from sweeps.trial import SweepRecord
from train_core.trial.measurement import Outcome

COLUMNS = (
    "#",
    "layout",
    "model TFLOPS",
    "± %",
    "runs",
    "MFU %",
    "step s",
    "tokens/s",
    "x baseline",
    "scaling",
    "efficiency %",
    "devices",
    "hardware TFLOPS",
    "peak GiB",
    "outcome",
)
OF_RATES = frozenset(COLUMNS) - {"layout", "outcome", "runs", "step s", "devices"}
"""The columns that say nothing of a program that knows nothing of the model."""
NUMERIC = frozenset(COLUMNS) - {"layout", "outcome", "scaling"}
SMALLEST_PERCENT = 0.001
Losses = dict[int, list[float]]
NEVER_RAN = (None, Outcome.INFEASIBLE, Outcome.PENDING)
RANKED = (
    "Ranked by model TFLOPS per device; = marks places that another may have, and a point of which every run was"
    " disturbed has no place."
)
SHOWN = (
    "Model TFLOPS count no recomputation. Of a point that was measured several times the middle run is shown, or the"
    " mean of two; ± is half of the interval in which the seconds of its step lie. The step is the slowest rank's"
    " median; x baseline compares tokens/s."
)


def section(subject: ReportSubject) -> Section | None:
    """The ranked table with what belongs to it, which the page filters and sorts; None of a sweep without trials."""
    record, results = subject.sweep.record, subject.results
    if not results:
        return None
    points = measured_points(results)
    relations, cautions = relations_of_points(points, results), noise_notes(results)
    if not record.shows_rates:
        return _without_rates(subject, points)
    if record.mode == "proxy" and any(result.performance for result in results):
        cautions.append(
            "This is a small proxy: its TFLOPS may be compared among themselves, but not with predicted or published"
            " figures, which are about another model on another machine."
        )
    blocks: tuple[Block, ...] = (
        *(Paragraph(caution, is_caution=True) for caution in cautions),
        *(Paragraph(note) for note in notes(record, results, subject.sweep.folder)),
        *_ranking(record, results, points, relations),
        *((Heading("How it was measured"), FactList(measured)) if (measured := facts(record, results)) else ()),
        *(() if "loss" in record.objective else _loss_blocks([point.middle for point in points])),
    )
    return Section("trials", "Every trial", "measured", _finding(results, points), blocks)


def _without_rates(subject: ReportSubject, points: Sequence[MeasuredPoint]) -> Section:
    """How the trials of a program that knows nothing of the model ended, and how long their steps took."""
    record, results = subject.sweep.record, subject.results
    table = _ranking(record, results, points, relations_of_points(points, results))[0]
    blocks = (*map(Paragraph, notes(record, results, subject.sweep.folder)), table)
    return Section("trials", "How each trial ended", "measured", _finding(results, points), blocks)


def _finding(results: Sequence[TrialReading], points: Sequence[MeasuredPoint]) -> str:
    """The ends of the trials in words; if points were measured again, those of the points."""
    repeats = sum(len(point.runs) - 1 for point in points)
    unmeasured = Counter(outcome_words(result.outcome) for result in results if not result.performance)
    others = "".join(f", {number_of} {outcome}" for outcome, number_of in unmeasured.items())
    if repeats:
        total = len(points) + unmeasured.total()
        return f"{count_of(total, 'point')}: {len(points)} measured ({len(points) + repeats} runs){others}."
    counted = count_of(len(results), "trial")
    return f"{counted}: {len(points)} measured{others}."


def _ranking(
    record: SweepRecord, results: Sequence[TrialReading], points: Sequence[MeasuredPoint], relations: dict[str, Scaling]
) -> tuple[Block, ...]:
    others = sorted(
        (result for result in results if not result.performance), key=lambda result: outcome_words(result.outcome)
    )
    if not record.seeks_rate:  # what it seeks ranks its points in a table of their own
        order = {result.name: number for number, result in enumerate(results)}
        points = sorted(points, key=lambda point: order[point.runs[0].name])
    placed = zip(places(points), points, strict=True)
    rows = [_measured_row(place, position, point, relations) for position, (place, point) in enumerate(placed, start=1)]
    for result in others:  # below the name, how the trial ended and why
        words = outcome_words(result.outcome)
        name = Cell(display_name(result), note=": ".join(filter(None, (words, _cause(result)))))
        rows.append(_row({"layout": name, "outcome": text(words)}))
    marked = frozenset({0} if points and record.seeks_rate else ())
    whole = Table(COLUMNS, tuple(rows), NUMERIC, marked, choices=("outcome",))
    table = NamedTable("trials", _drop_idle_columns(whole, record))
    if not points:
        return (table,)
    ranked = (RANKED, SHOWN) if record.seeks_rate else (SHOWN,)
    note = Paragraph(" ".join((*ranked, *_efficiency(points, relations))), is_note=True)
    if len(points) < 2 or not record.seeks_rate:
        return (table, note)
    caption = (
        "Measured model TFLOPS per device, fastest first. A whisker is the interval of the rate; those whose whiskers"
        " overlap cannot be told apart."
    )
    return (table, note, Plot("measured-rate", caption, _rates(points)))


def _efficiency(points: Sequence[MeasuredPoint], relations: dict[str, Scaling]) -> Iterator[str]:
    """Sentences on the meaning of efficiency here, and on the trials without one."""
    ranked_relations = [relations[point.middle.trial.trial_id] for point in points]
    constants = dict.fromkeys((each.kind, each.held_constant) for each in ranked_relations if each.held_constant)
    if constants:
        kinds = ", ".join(f"{kind} scaling with a {what} held constant" for kind, what in constants)
        yield f"Efficiency is the rate per device over the baseline's, where devices were added: {kinds}."
    yield from (f"No efficiency for {line}." for line in incomparable([point.middle for point in points], relations))


def _drop_idle_columns(table: Table, record: SweepRecord) -> Table:
    """The table without columns that say nothing here, its first named after what the labels say."""
    idle = {"scaling"} if len(set(table.texts_of("scaling")) - {ABSENT}) < 2 else set()
    if table.texts_of("outcome") == ["completed"]:
        idle.add("outcome")
    if not record.shows_rates:
        idle |= OF_RATES
    if not record.seeks_rate:
        idle.add("#")
    if record.mode != "cluster":
        idle.add("hardware TFLOPS")  # these are there to be held against published figures
    if not set(table.texts_of("runs")) - {ABSENT, "1"}:
        idle.add("runs")
    needed = table.only([name for name in COLUMNS if name not in idle]).without_empty_columns()
    heading = record.labels.heading
    return replace(needed, columns=tuple(heading if name == "layout" else name for name in needed.columns))


def _row(cells: dict[str, Cell]) -> tuple[Cell, ...]:
    filled = {name: number(ABSENT, None) if name in NUMERIC else text(ABSENT) for name in COLUMNS} | cells
    return tuple(filled[name] for name in COLUMNS)


def _measured_row(place: str, position: int, point: MeasuredPoint, relations: dict[str, Scaling]) -> tuple[Cell, ...]:
    name = point.name + (" (baseline)" if point.is_baseline else "")
    cells = measured_cells(point, relations[point.middle.trial.trial_id]) | {
        "#": number(place or ABSENT, -position),
        "layout": Cell(name, note=point.aside or point.disturbed or _sharing_note(point.middle) or point.middle.cause),
        "outcome": text("disturbed" if point.disturbed else outcome_words(point.middle.outcome)),
    }
    return _row(cells)


def _sharing_note(result: TrialReading) -> str:
    """Says so where ranks took turns on their devices, which no cluster would have them do."""
    performance, experiment = result.performance, result.experiment
    if performance is None or experiment is None or not result.shares_devices:
        return ""
    return f"{experiment.parallel.world_size} ranks share {count_of(performance.num_devices, 'device')}"


def _cause(result: TrialReading) -> str:
    """The reason why it ended as it did, and the folder of its logs."""
    cause = result.cause
    if not cause and result.steps and result.outcome is Outcome.RUNNING:
        cause = f"step {result.steps[-1].step} of {result.steps[-1].num_steps} done"
    if result.performance or result.outcome in NEVER_RAN or result.is_called_off:
        return cause
    return f"{cause} (logs: trials/{result.trial.trial_id}/logs)".strip()


def _rates(points: Sequence[MeasuredPoint]) -> Spec:
    """Bars with the interval of each rate as whiskers."""
    shown = points[:MOST_BARS]
    names = distinct_names([point.name for point in shown])
    values = []
    for name, point in zip(names, shown, strict=True):
        rate, low, high = (round_to_digits(each / TERA) for each in (point.values[0], *point.bounds))
        kind = "baseline" if point.is_baseline else "other"
        values.append({"layout": name, "trial": kind, "rate": rate, "low": low, "high": high})
    scale = {"domain": ["baseline", "other"], "range": ["var(--accent)", "var(--measured)"]}
    spec = bars(values, "rate", "measured model TFLOPS per device", color=category("trial", scale=scale))
    x = quantity("low", "measured model TFLOPS per device")
    spec["layer"].append(layer({"type": "rule", "color": "var(--ink)"}, x=x, x2={"field": "high"}))
    return spec


def _loss_blocks(best_first: Sequence[TrialReading]) -> tuple[Block, ...]:
    """Trials that train the same model on the same batches must agree, whatever their layout."""
    groups = _group_by_data(best_first)
    if not groups:
        return ()
    alike = {name: members for name, members in groups.items() if len(members) > 1}
    sentences = [_difference(name, len(members), _losses(members)) for name, members in alike.items()]
    if not alike:
        sentences.append("No two trials differ in their layout alone, so that there are no losses to compare.")
    diverged = [result.label for result in best_first if _has_diverged(result)]
    if diverged:
        sentences.append(f"A loss that is not a finite number: {listed(diverged, FIRST_ROWS)}.")
    drawn = dict(list(groups.items())[:MOST_BARS])
    caption = (
        "Training loss, measured: the mean of the trials that train on the same batches, between the lowest and the"
        f" highest of them.{f' The {MOST_BARS} fastest kinds of {len(groups):,}.' if len(groups) > MOST_BARS else ''}"
    )
    return (
        Heading("Loss"),
        Paragraph(" ".join(sentences), is_caution=bool(diverged)),
        Plot("loss", caption, _plot(drawn)),
    )


def _group_by_data(best_first: Sequence[TrialReading]) -> dict[str, list[TrialReading]]:
    """Trials by what decides about the loss, so that those of a group differ in their layout alone."""
    groups = grouped(
        (each for each in best_first if each.performance and each.experiment), lambda each: _data(each.planned)
    )
    names = [f"global batch {batch}" for batch, *_ in groups]
    labels = Counter(members[0].label for members in groups.values() if len(members) == 1)
    distinct: dict[str, list[TrialReading]] = {}
    for place, (batch, members) in enumerate(zip(names, groups.values(), strict=True), start=1):
        label = members[0].label
        if names.count(batch) == 1:
            distinct[batch] = members
        elif len(members) == 1 and labels[label] == 1:  # which says what the trial has of its own, as a learning rate
            distinct[label] = members
        else:
            distinct[f"{batch} ({place})"] = members
    return distinct


def _data(experiment: Experiment) -> tuple[Any, ...]:
    return (
        experiment.batch.global_batch_size,
        experiment.model.model_dump_json(exclude={"name"}),
        experiment.precision.model_dump_json(),
        experiment.data.model_dump_json(exclude={"cache_dir"}),
        experiment.training.model_dump_json(),
    )


def _losses(members: Sequence[TrialReading]) -> Losses:
    losses: Losses = defaultdict(list)
    for result in members:
        if result.performance:
            for step, loss in zip(result.performance.recorded_steps, result.performance.losses, strict=False):
                if math.isfinite(loss):
                    losses[step].append(loss)
    return losses


def _difference(name: str, num_trials: int, losses: Losses) -> str:
    shares = [(max(at) - min(at)) / abs(max(at)) for at in losses.values() if max(at)]
    largest = max(shares, default=0.0)
    by = f"{SMALLEST_PERCENT} %" if largest < SMALLEST_PERCENT / 100 else f"{significant(100 * largest, 2)} %"
    return f"The {num_trials} trials with {name} trained on the same batches: their losses differ by at most {by}."


def _has_diverged(result: TrialReading) -> bool:
    return result.performance is not None and not all(map(math.isfinite, result.performance.losses))


def _plot(groups: dict[str, list[TrialReading]]) -> Spec:
    values = [
        {"batch": name, "step": step, "loss": sum(at) / len(at), "lowest": min(at), "highest": max(at)}
        for name, members in groups.items()
        for step, at in sorted(_losses(members).items())
    ]
    colour = category("batch")
    if len(groups) == 1:
        colour["legend"] = None
    lowest, loss = (quantity(field, "training loss", scale={"zero": False}) for field in ("lowest", "loss"))
    return {
        "data": {"values": values},
        "height": 260,
        "encoding": {"x": quantity("step", "step", axis={"tickMinStep": 1}), "color": colour},
        "layer": [
            layer({"type": "area", "opacity": 0.25}, y=lowest, y2={"field": "highest"}),
            layer({"type": "line", "point": True}, y=loss),
        ],
    }
