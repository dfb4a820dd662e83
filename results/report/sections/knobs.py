"""The knobs that mattered: in what was measured, in what is predicted, and in what others published."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from conf.grouped import grouped
from conf.units import TERA, count_of
from costs import IMPLEMENTATIONS, Estimate
from results.analysis.findings.ranking import by_prediction
from results.analysis.knobs.sensitivity import (
    MOST_POINTS,
    Interaction,
    KnobShare,
    Sensitivity,
    finding,
    memory_counts,
    memory_shares,
    published_order,
    sensitivity,
    why_untold,
)
from results.analysis.knobs.table import (
    KnobColumn,
    KnobTable,
    RatesAre,
    knob_words,
    measured_table,
    predicted_table,
    setting_text,
)
from results.render.charts import category, layer, quantity
from results.render.section import Block, Heading, NamedTable, NumbersAre, Paragraph, Plot, ReportSubject, Section
from results.render.table import Cell, Table, number, text
from results.render.units import ABSENT, gib, percent, seconds, signed_percent
from sweeps.planner.choosing.explain import Explanation, explain
from sweeps.planner.plans.strategy import Strategy
from sweeps.ranking.points import ranking_of
from sweeps.trial import SweepRecord, Trial

FEWEST_SHOWN = 6
MOST_NEIGHBOURS, MOST_NAMED = 8, 3
SHARE_WORTH_A_PLOT = 0.02
"""No picture is drawn of two knobs that do less than this together."""
MOST_PANELS, BAR_STEP, CELL_STEP = 6, 26, 80


def section(subject: ReportSubject) -> Section | None:
    """Return the section, or None if the sweep has only a few trials, or varies fewer than two knobs."""
    record = subject.sweep.record
    tables = [measured_table(subject.results), predicted_table(_predicted_trials(record))]
    tables = [table for table in tables if len(table.rated_points) >= FEWEST_SHOWN and len(table.columns) >= 2]
    if not tables:
        return None
    sensitivities = {table.rates_are: sensitivity(table) for table in tables if not why_untold(table)}
    memory = {table.rates_are: memory_shares(table) for table in tables}
    explained, first = _explanation(subject), tables[0]
    blocks: list[Block] = []
    for table in tables:
        blocks += _table_blocks(table, sensitivities.get(table.rates_are), memory[table.rates_are])
    blocks += _neighbours(explained) if explained else []
    blocks += _published_blocks(record.name, sensitivities, memory)
    sentence = _finding(tables, sensitivities)
    is_mixed = first.rates_are == "measured" and (explained is not None or len(tables) > 1)
    kind: NumbersAre = "measured and predicted" if is_mixed else first.rates_are
    return Section("knobs", "Which knob mattered", kind, sentence, tuple(blocks))


def _finding(tables: Sequence[KnobTable], sensitivities: Mapping[RatesAre, Sensitivity]) -> str:
    """The finding of each table, the measured one first."""
    first, *others = [
        finding(sensitivities[table.rates_are])
        if table.rates_are in sensitivities
        else f"The trials do not tell: {why_untold(table)}."
        for table in tables
    ]
    return " ".join((first, *(f"On paper: {other[0].lower()}{other[1:]}" for other in others)))


def _table_blocks(table: KnobTable, sensitivity: Sensitivity | None, shares: Sequence[KnobShare]) -> Iterator[Block]:
    kind = table.rates_are
    yield Heading("In the trials that were measured" if kind == "measured" else "In the points that are predicted")
    if sensitivity is None:
        yield Paragraph("There are too few trials to tell.")
    elif not sensitivity.is_told:
        yield Paragraph("No shares are shown, because they would be those of noise.")
    else:
        yield NamedTable(f"knobs-{kind}", _shares_table(sensitivity))
        yield Paragraph(_method(table, sensitivity), is_note=True)
        yield _shares_plot(sensitivity)
        yield _dependence_plot(sensitivity)
        # The two that depend on each other most.
        if (pairs := sensitivity.interactions) and pairs[0].share >= SHARE_WORTH_A_PLOT:
            yield _pair_plot(table, pairs[0])
    if memory := _memory_table(table):
        what = "ran out of memory" if kind == "measured" else "do not fit on paper"
        some = "trials ran out of it" if kind == "measured" else "points do not fit on paper"
        named = ", ".join(f"{column.words} {percent(share)} %" for column, share in shares[:MOST_NAMED])
        decides = f" What decides it (SHAP): {named}." if named else ""
        yield Paragraph(f"Memory has the first word: some {some}.{decides}")
        yield NamedTable(f"knobs-memory-{kind}", memory, folded_as=f"How many trials {what}, by value of each knob")


def _method(table: KnobTable, sensitivity: Sensitivity) -> str:
    has_more = sensitivity.num_points > MOST_POINTS
    taken = f", of which {MOST_POINTS} are taken evenly over their ranking" if has_more else ""
    have = "has" if table.num_others == 1 else "have"
    ended = f" {count_of(table.num_others, 'more trial')} ended otherwise, or {have} yet to run."
    others = ended if table.num_others else ""
    return (
        f"From {sensitivity.num_points} {table.rates_are} rates (model FLOP/s per device){taken}: trees explain"
        f" {percent(max(0.0, sensitivity.explained))} % of the differences between trials that they have not seen."
        " Share: of all that moves the trials away from their mean (SHAP). Range: four of five draws of as many trials,"
        " with replacement. Alone: without what only several knobs together do. Gain: the fastest value over the"
        f" slowest, all other knobs as they were. Trials without a rate are not in it.{others}"
    )


def _shares_table(sensitivity: Sensitivity) -> Table:
    rows = [
        {
            "knob": text(effect.column.words),
            "share %": number(percent(effect.share), effect.share),
            "80 % range %": Cell(f"{percent(effect.low)} to {percent(effect.high)}", effect.low),
            "alone (fANOVA) %": number(percent(effect.fanova), effect.fanova),
            "fastest at": text(setting_text(effect.fastest_at)),
            "gain %": number(f"{100 * effect.gain:.0f}", effect.gain),
        }
        for effect in sensitivity.effects
    ]
    return Table.of(rows, {place for place, each in enumerate(sensitivity.effects) if each in sensitivity.leaders})


def _memory_table(table: KnobTable) -> Table | None:
    counts = memory_counts(table)
    if not counts:
        return None
    out = "ran out" if table.rates_are == "measured" else "do not fit"
    rows = [
        {
            "knob": text(each.column.words),
            "value": text(each.words),
            "trials": number(str(each.num_trials), each.num_trials),
            out: number(str(each.num_out), each.num_out),
            "of them %": number(percent(each.share), each.share),
        }
        for each in counts
    ]
    return Table.of(rows)


def _predicted_trials(record: SweepRecord) -> Sequence[Trial]:
    """Return the trials with predictions: of a proxy's sweep the full size, else the trials themselves."""
    return record.plan if record.mode == "proxy" else record.trials


def _explanation(subject: ReportSubject) -> Explanation | None:
    """The plan that a reader would take: the fastest that was measured at full size, else the best on paper."""
    record = subject.sweep.record
    fitting = [trial for trial in _predicted_trials(record) if trial.estimate and not trial.infeasible_reason]
    best = next(iter(by_prediction(fitting)), None)
    if record.mode == "cluster":
        best = next((result.trial for result in ranking_of(subject.results)), best)
    if best is None or best.experiment is None or best.experiment.mixed is not None:
        return None
    experiment = best.experiment
    strategy = Strategy(experiment.parallel, experiment.batch)
    return explain(strategy, experiment, IMPLEMENTATIONS[experiment.trainer.costs_of])


def _neighbours(explained: Explanation) -> Iterator[Block]:
    if explained.estimate is None or not explained.alternatives:
        return
    yield Heading("Around the best plan, on paper")
    yield Paragraph(
        f"Predicted: `{explained.label}` with one knob changed at a time, and what follows from that knob. A share"
        " above says what a knob did over the whole sweep; this says what it would still do here."
    )
    shown = explained.alternatives[:MOST_NEIGHBOURS]
    rows = [
        {
            "knob": text(knob_words(each.knob)),
            "value": text(each.value),
            "predicted step s": _predicted_cell(each.estimate, "step_seconds", seconds),
            "slower %": number(signed_percent(each.slower), each.slower),
            "predicted GiB": _predicted_cell(each.estimate, "peak_memory_bytes", gib),
            **({"why not": text(each.reason or "")} if any(each.reason for each in shown) else {}),
        }
        for each in shown
    ]
    yield NamedTable("knobs-neighbours", Table.of(rows))


def _predicted_cell(estimate: Estimate | None, name: str, shown_as: Callable[[float | None], str]) -> Cell:
    value = getattr(estimate, name) if estimate else None
    return number(shown_as(value), value)


def _published_blocks(
    sweep: str, sensitivities: Mapping[RatesAre, Sensitivity], memory: Mapping[RatesAre, Sequence[KnobShare]]
) -> Iterator[Block]:
    """The order that a study found beside ours."""
    places = published_order(sweep)
    if not places:
        return
    ours = {f"{kind}, by rate": [effect.column for effect in sensitivities[kind].effects] for kind in sensitivities}
    for kind, shares in memory.items():
        if columns := [column for column, _ in shares]:
            ours[f"{kind}, by memory"] = columns
    doubt = "" if places[0].confirmed == "yes" else " It is recalled, and was not confirmed by a look-up."
    yield Heading("The order that the study found")
    yield Paragraph(f"Published: {places[0].source}.{doubt} {_PLACES}")
    rows = [
        {
            "knob": text(knob_words(place.knob)),
            "published place": number(str(place.place), place.place),
            **{whose: _place_among(columns, place.knob) for whose, columns in ours.items()},
        }
        for place in places
    ]
    yield NamedTable("knobs-published", Table.of(rows))


def _place_among(columns: Sequence[KnobColumn], knob: str) -> Cell:
    names = ((column.name, *column.together_with) for column in columns)
    place = next((place for place, together in enumerate(names, start=1) if knob in together), None)
    return number(ABSENT if place is None else str(place), place)


_PLACES = (
    "Places of ours are by share: among the trials that have a rate, and in what decides whether a trial runs out of"
    " memory, which a search that scores failures learns as well. A knob that did not vary has none."
)


def _shares_plot(sensitivity: Sensitivity) -> Plot:
    """A bar for each knob, with the range of four draws of five."""
    values = [
        {
            "knob": effect.column.words,
            "share": round(100 * effect.share, 2),
            "low": round(100 * effect.low, 2),
            "high": round(100 * effect.high, 2),
        }
        for effect in sensitivity.effects
    ]
    order = [value["knob"] for value in values]
    bar = layer({"type": "bar", "color": f"var(--{sensitivity.rates_are})"}, x=quantity("share", "share %"))
    range_mark = {"type": "rule", "strokeWidth": 2, "color": "var(--ink)"}
    line = layer(range_mark, x=quantity("low", "share %"), x2={"field": "high"})
    spec: dict[str, Any] = {
        "data": {"values": values},
        "height": {"step": BAR_STEP},
        "encoding": {"y": category("knob", sort=order)},
        "layer": [bar, line],
    }
    caption = (
        f"How much of the differences between {sensitivity.rates_are} rates each knob explains, with the range of four"
        " draws of the trials in five."
    )
    return Plot(f"knob-shares-{sensitivity.rates_are}", caption, spec)


def _dependence_plot(sensitivity: Sensitivity) -> Plot:
    """The rate for each value of the first knobs, a panel for each."""
    values = []
    for effect in sensitivity.effects[:MOST_PANELS]:
        of_values = zip(effect.column.values, effect.rates, effect.low_rates, effect.high_rates, strict=True)
        for place, (value, rate, low, high) in enumerate(of_values):
            rates = {"rate": round(rate / TERA, 4), "low": round(low / TERA, 4), "high": round(high / TERA, 4)}
            values.append({"knob": effect.column.words, "value": setting_text(value), "order": place, **rates})
    kind, title = f"var(--{sensitivity.rates_are})", f"{sensitivity.rates_are} TFLOPS"
    axis = {"labelAngle": 0, "labelOverlap": True}
    x = {"field": "value", "type": "ordinal", "sort": {"field": "order"}, "title": None, "axis": axis}
    y, y_low = (quantity(field, title, scale={"zero": False}) for field in ("rate", "low"))
    panel: dict[str, Any] = {
        "width": 150,
        "height": 120,
        "encoding": {"x": x},
        "layer": [
            layer({"type": "rule", "color": kind, "opacity": 0.5, "strokeWidth": 3}, y=y_low, y2={"field": "high"}),
            layer({"type": "line", "point": {"color": kind}, "color": kind}, y=y),
        ],
    }
    order = [effect.column.words for effect in sensitivity.effects[:MOST_PANELS]]
    spec: dict[str, Any] = {
        "data": {"values": values},
        "columns": 3,
        "facet": category("knob", sort=order),
        "spec": panel,
        "resolve": {"scale": {"x": "independent"}},
    }
    caption = (
        f"What each value of a knob does to the {sensitivity.rates_are} rate, all other knobs as they were (partial"
        " dependence), with the range of four draws in five."
    )
    return Plot(f"knob-dependence-{sensitivity.rates_are}", caption, spec)


def _pair_plot(table: KnobTable, pair: Interaction) -> Plot:
    """The geometric mean of the rates for every pair of values that was tried, of the two knobs that interact most."""
    names = pair.first.name, pair.second.name
    points = grouped(table.rated_points, lambda point: tuple(point.settings[name] for name in names))
    values = [
        {
            "a": setting_text(a),
            "b": setting_text(b),
            "rate": round(geometric_mean([point.rate or 0.0 for point in of_pair]) / TERA, 4),
        }
        for (a, b), of_pair in points.items()
    ]
    encoding = {"x": _axis("a", pair.first), "y": _axis("b", pair.second)}
    color = quantity("rate", "TFLOPS", scale={"scheme": "viridis"})
    spec: dict[str, Any] = {
        "data": {"values": values},
        "height": {"step": BAR_STEP},
        "width": {"step": CELL_STEP},
        "mark": {"type": "rect"},
        "encoding": encoding | {"color": color},
    }
    caption = (
        f"Mean {table.rates_are} TFLOPS per device for each pair of values of {pair.first.words} and"
        f" {pair.second.words}, the two knobs that depend on each other most ({percent(pair.share)} % of the"
        " differences). Other knobs differ between cells."
    )
    return Plot(f"knob-pair-{table.rates_are}", caption, spec)


def _axis(field: str, column: KnobColumn) -> dict[str, Any]:
    names = [setting_text(value) for value in column.values]
    return {"field": field, "type": "ordinal", "sort": names, "title": column.words, "axis": {"labelAngle": 0}}
