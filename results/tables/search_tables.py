"""The plans that a search found as a table for a terminal, one taken apart, and the sentences to read beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from conf.compose.settings import Settings
from conf.types.schema import DOCUMENTS, DataSpec, PrecisionPlan
from conf.units import SECONDS_PER_HOUR, gain_of
from costs.counts.flops import DoneShares, model_flops
from results.render.legend import names_in_short
from results.render.table import Table, breakable, columns_with_room, text
from results.render.units import count, gib, percent, seconds, signed_percent, significant, tflops
from results.tables.search_rows import layout, layout_knobs, training_costs
from sweeps.memory_odds import NONE_LIKELY
from sweeps.planner.choosing.choice import Candidate, Choice, Judged, gain_in_words, judge, rivals_of
from sweeps.planner.choosing.explain import Alternative, Explanation
from sweeps.planner.choosing.objectives import ScalingKind, Training, dollars_per_second
from sweeps.planner.choosing.scaling import ScalingPoint
from sweeps.planner.mixed import MixedChoice, MixedStrategy
from sweeps.planner.request import Request

WIDE = 100
FIRST_TO_GO, NEXT_TO_GO = ("TFLOPS", "J/token"), ("MFU %", "hours", "seconds", "80 %")
LEAST_HOURS = 0.1
LEAST_LAYOUT = 24
"""The characters that a layout has at least: it breaks at its dashes, but not into single words."""

TITLES: dict[ScalingKind, str] = {
    "weak": "Predicted weak scaling, not measured: the batch grows with the devices",
    "strong": "Predicted strong scaling, not measured: the batch stays",
}

LETS_IN = "--headroom 0 lets it in."
MOST_OUTSIDE = 3
CAUSAL, MOST_CAUSAL_SHARE = DoneShares(attended=0.5), 0.85
"""Of the model's FLOPs with attention in full, what they are if it is counted for the pairs that a mask leaves."""
SMALLEST_SHARE = 0.001
"""A smaller part of the step, or of the memory, is not worth a word."""


def search_table(best: Sequence[Candidate], training: Training, title: str) -> Table:
    """The best plans, best first. TFLOPS are model FLOPs per device; memory that a plan nearly fills is marked."""
    rows = [_cells(candidate, training) for candidate in best]
    return _table(title, best, _columns(best, training, several_places=True), rows)


def judged_table(shown: Sequence[Judged], training: Training, title: str, *, several_places: bool, width: int) -> Table:
    """The same with the interval in which four measurements of five are expected.

    Args:
        several_places: clusters or numbers of devices to choose among were offered.
        width: columns of the terminal; on a narrow one, what follows from other columns makes room for the layouts.
    """
    best = [judged.candidate for judged in shown]
    columns = _columns(best, training, several_places)
    columns.insert(columns.index("step s") + 1, "80 %")
    if width < WIDE:
        columns = [name for name in columns if name not in FIRST_TO_GO]
    rows = []
    for judged in shown:
        cells = _cells(judged.candidate, training)
        cells["80 %"] = f"{seconds(judged.interval.low_seconds)}-{seconds(judged.interval.high_seconds)}"
        rows.append(cells)
    cells_of = {name: [cells[name] for cells in rows] for name in columns}
    kept = columns_with_room(cells_of, NEXT_TO_GO, width - len("## ") - LEAST_LAYOUT)
    return _table(title, best, list(kept), rows)


def _table(
    title: str, best: Sequence[Candidate], columns: Sequence[str], figures: Sequence[Mapping[str, str]]
) -> Table:
    names, prices = names_in_short(map(layout_knobs, best)), _prices(best) if {"$", "$/Mtoken"} & set(columns) else ""
    rows = tuple(
        (text(position), breakable(layout(candidate)), *(text(cells[name]) for name in columns))
        for position, (candidate, cells) in enumerate(zip(best, figures, strict=True), start=1)
    )
    return Table(
        ("#", "layout", *columns),
        rows,
        frozenset(("#", *columns)),
        title=f"Predicted, not measured: {title}",
        caption=" ".join(filter(None, (f"Names: {names}." if names else "", prices))),
    )


def _prices(best: Sequence[Candidate]) -> str:
    """What an hour of each type of device costs, by which all money here is counted."""
    devices = {each.space.setting.cluster.device.name: each.space.setting.cluster.device for each in best}
    each_hour = [f"${device.price_per_hour:,.4g} an hour of {name}" for name, device in devices.items()]
    return f"Money: {', '.join(each_hour)}."


def _columns(best: Sequence[Candidate], training: Training, several_places: bool) -> list[str]:
    """The columns that say something about these plans.

    Devices are shown only where there was a choice, and money only where every plan has a price. Costs are those of the
    whole training where its length is known, and of a token otherwise.
    """
    money = all(dollars_per_second(candidate.space) is not None for candidate in best)
    names = ["devices"] if several_places else []
    names += ["step s", "TFLOPS", "MFU %", "GiB"]
    if training.num_steps:
        # A short training takes no thousandths of an hour.
        longest = max((training_costs(each, training)["predicted_hours"] or 0.0 for each in best), default=1.0)
        return names + ["hours" if longest >= LEAST_HOURS else "seconds"] + (["$"] if money else [])
    return names + (["$/Mtoken"] if money else []) + ["J/token"]


def _cells(candidate: Candidate, training: Training) -> dict[str, str]:
    space, costs = candidate.space, training_costs(candidate, training)
    hours = costs["predicted_hours"]
    return {
        "devices": f"{space.world_size:,} {space.setting.cluster.name}",
        "step s": seconds(candidate.step_seconds),
        "TFLOPS": tflops(candidate.model_flops_per_second_per_device),
        "MFU %": percent(candidate.model_flops_utilization),
        "GiB": gib(candidate.peak_memory_bytes) + ("" if candidate.is_likely else "!"),
        "$/Mtoken": significant(costs["predicted_dollars_per_million_tokens"]),
        "J/token": significant(costs["predicted_joules_per_token"]),
        "hours": significant(hours),
        "seconds": significant(None if hours is None else SECONDS_PER_HOUR * hours),
        "$": count(costs["predicted_dollars"]),
    }


def scaling_table(points: Sequence[ScalingPoint], kind: ScalingKind) -> Table:
    """One row for each number of devices; efficiency is over that of the first row that has a plan."""
    numeric = ("devices", "batch", "step s", "TFLOPS", "efficiency %")
    rows = []
    for point in points:
        candidate = point.candidate
        figures = (
            count(point.world_size),
            count(point.global_batch_size),
            seconds(candidate.step_seconds if candidate else None),
            tflops(candidate.model_flops_per_second_per_device if candidate else None),
            percent(point.efficiency),
        )
        rows.append((*map(text, figures), breakable(layout(candidate)) if candidate else text("no plan fits")))
    return Table((*numeric, "layout"), tuple(rows), frozenset(numeric), title=TITLES[kind])


def scaling_document(points: Sequence[ScalingPoint], kind: ScalingKind, parts: Settings) -> dict[str, object]:
    """The curve for JSON; `parts` is the configuration of what its plans share."""
    planned = [point.candidate for point in points if point.candidate]
    intervals = {id(each.candidate): each.interval for each in judge(planned, parts)}
    of_points = [intervals.get(id(point.candidate)) for point in points]
    return {
        "kind": kind,
        "points": [
            {
                "world_size": point.world_size,
                "global_batch_size": point.global_batch_size,
                "layout": layout(point.candidate) if point.candidate else None,
                "predicted_step_seconds": point.candidate.step_seconds if point.candidate else None,
                "predicted_low_step_seconds": interval.low_seconds if interval else None,
                "predicted_high_step_seconds": interval.high_seconds if interval else None,
                "predicted_scaling_efficiency": point.efficiency,
            }
            for point, interval in zip(points, of_points, strict=True)
        ],
    }


def explanation_lines(explanation: Explanation) -> Iterator[RenderableType]:
    """The lines to print, and at the end the table of alternatives."""
    predicted = explanation.estimate
    if predicted is None:
        yield Text.assemble((explanation.label, "bold"), f" cannot exist: {explanation.reason or ''}")
        return
    step, capacity = predicted.step_seconds, predicted.memory_capacity_bytes
    yield Text.assemble((explanation.label, "bold"), f": predicted {seconds(step)} s a step")
    needs = f"stage {predicted.worst_stage} of {len(predicted.stages)} needs most"
    of_bytes = _shares(explanation.memory, predicted.peak_memory_bytes, gib, " GiB")
    grid = RichTable.grid(padding=(0, 2))  # which breaks a long line below its own beginning
    grid.add_row("  time", _shares(explanation.terms, step, seconds, " s"))
    grid.add_row("  memory", f"{needs}, {gib(predicted.peak_memory_bytes)} of {gib(capacity)} GiB: {of_bytes}")
    yield grid
    yield f"  What binds: {_binding(explanation)}."
    yield from _casts_sentence(explanation.alternatives, step)
    yield _alternatives(explanation)


def _casts_sentence(alternatives: Sequence[Alternative], step: float) -> Iterator[str]:
    """Yield what the plan would take without its narrow products, where these are the slower ones."""
    steps = {each.knob: each.estimate.step_seconds for each in alternatives if each.estimate}
    if (wide := steps.get("matmul_recipe", step)) >= step:
        return
    compiled = steps.get("compile_layers", step)
    remedy = f", and with training.compile_layers=true {seconds(compiled)} s" if compiled < step else ""
    yield (
        f"  Casting operands takes longer than low-precision matmuls save: the same plan is predicted to take"
        f" {seconds(wide)} s with precision.matmul_recipe=null{remedy}."
    )


def _shares(parts: dict[str, Any], whole: float, shown: Any, unit: str) -> str:
    words = [
        f"{name.removesuffix('_seconds').removesuffix('_bytes')} {shown(value)}{unit} ({100 * value / whole:.0f} %)"
        for name, value in parts.items()
        if value > SMALLEST_SHARE * whole
    ]
    return ", ".join(words)


def _binding(explanation: Explanation) -> str:
    """Words on what limits this plan, which is what to look at first."""
    if explanation.reason:
        return f"memory; it {explanation.reason}"
    largest = next(iter(explanation.terms)).removesuffix("_seconds")
    blocked = sum(each.estimate is not None and each.reason is not None for each in explanation.alternatives)
    lacking = f"{blocked} of its neighbours lack memory" if blocked else "no neighbour lacks memory"
    return f"{largest}; {gib(explanation.headroom_bytes)} GiB are free, and {lacking}"


def _alternatives(explanation: Explanation) -> Table:
    rows = []
    for each in explanation.alternatives:
        predicted = each.estimate
        slower = "" if each.slower is None else f"{signed_percent(each.slower)} %"
        step, memory = (predicted.step_seconds, predicted.peak_memory_bytes) if predicted else (None, None)
        rows.append(tuple(map(text, (each.knob, each.value, seconds(step), slower, gib(memory), each.reason or ""))))
    columns = ("knob", "value", "step s", "slower", "GiB", "why not")
    numeric, title = frozenset({"step s", "slower", "GiB"}), "One knob changed, predicted"
    longest = max((len(each.knob) for each in explanation.alternatives), default=0)
    return Table(columns, tuple(rows), numeric, title=title, least_name_width=longest)


def explanation_document(explanation: Explanation) -> dict[str, object]:
    """The explanation for JSON; every number in it is predicted."""
    predicted = explanation.estimate
    document: dict[str, object] = {"layout": explanation.label, "infeasible_reason": explanation.reason}
    if predicted is None:
        return document
    return {
        **document,
        "predicted_step_seconds": predicted.step_seconds,
        **{f"predicted_{name}": value for name, value in explanation.terms.items()},
        "predicted_worst_stage": predicted.worst_stage,
        "predicted_peak_memory_bytes": predicted.peak_memory_bytes,
        "memory_capacity_bytes": predicted.memory_capacity_bytes,
        "predicted_memory_bytes": {name.removesuffix("_bytes"): value for name, value in explanation.memory.items()},
        "alternatives": [
            {
                "knob": each.knob,
                "value": each.value,
                "predicted_step_seconds": each.estimate.step_seconds if each.estimate else None,
                "predicted_peak_memory_bytes": each.estimate.peak_memory_bytes if each.estimate else None,
                "predicted_slower_share": each.slower,
                "infeasible_reason": each.reason,
            }
            for each in explanation.alternatives
        ],
    }


def notes(shown: Sequence[Judged], choice: Choice | None, request: Request) -> Iterator[str]:
    """Sentences on the order, the intervals, the memory and the vocabulary of what is shown.

    Args:
        choice: the whole answer where the rows are families; None where they are plans.
    """
    if choice is not None:
        yield _order_sentence(choice, shown)
        yield from passed_over_sentences(choice)
    yield shown[0].interval.in_words
    yield from _outside_sentences(shown)
    yield from _causal_sentence(shown[0].candidate)
    yield from unlikely_sentences([judged.candidate for judged in shown])
    yield from unpriced_sentences(request.settings.data, request.settings.precision)
    if request.padding:
        yield padded_vocabulary_sentence(request.vocab_size, request.settings.model.vocab_size)


def unlikely_sentences(shown: Sequence[Candidate | MixedStrategy]) -> Iterator[str]:
    """Yield the sentence on those plans, by their numbers, that may not fit."""
    odds = [f"#{number} is {each.odds_in_words}" for number, each in enumerate(shown, start=1) if not each.is_likely]
    if odds:
        yield unlikely_sentence(", ".join(odds))


def unlikely_sentence(odds: str) -> str:
    """The sentence on what may not fit, such as `It is 60% likely to fit`."""
    return f"! {odds}, by what predicted memory was off on published runs."


def none_likely_sentence() -> str:
    return f"{NONE_LIKELY.capitalize()}; what fits on paper is shown."


def unpriced_sentences(data: DataSpec, precision: PrecisionPlan) -> Iterator[str]:
    """Sentences on what a configuration asks for and a price does not follow."""
    if data.separate_documents:
        yield (
            f"! {DOCUMENTS}=true is priced with attention over whole sequences: how long documents are is not known on"
            " paper. Separate ones take less time, and no more memory on a GPU whose flash kernel runs."
        )
    if precision.emulate:
        yield f"! precision.emulate=true is priced as products in {precision.dtype}; an emulation takes longer."
    elif precision.wide_layers:
        yield f"! precision.wide_layers={precision.wide_layers} is priced as if all layers multiplied in low precision."


def padded_vocabulary_sentence(stated: int, padded: int) -> str:
    return (
        f"Vocabulary padded from {stated:,} to {padded:,} rows, of which tensor ranks take equal shares; the overrides"
        f" carry model.vocab_size={padded}."
    )


def _order_sentence(choice: Choice, shown: Sequence[Judged]) -> str:
    """A sentence on the families that may be the best, and on what would decide."""
    places, share = rivals_of(choice, shown[0]), shown[0].interval.rivals
    off = f"two predictions for one machine are off against each other by up to {share:.1%} (four pairs of five)"
    if choice.num_families == 1:
        return "No other family fits."
    if len(places) == 1:
        return f"The first family is ahead by more than the error of the order: {off}."
    numbers, first = [place + 1 for place in places if place < len(shown)], places[-1] + 1 == len(places)
    in_row = numbers[-1] == len(numbers) > 2
    deciding = (
        f"#1 to #{numbers[-1]}"
        if in_row
        else (" and " if len(numbers) == 2 else ", ").join(f"#{each}" for each in numbers)
    )
    decide = f"The trials that would decide are {deciding}." if len(numbers) > 1 else ""
    hidden = f"--top {places[-1] + 1} shows all of them." if len(numbers) < len(places) else ""
    which = f"{'the first ' if first else ''}{len(places)}"
    many = f"At least {which}" if choice.num_left_out else which.capitalize()
    return " ".join(filter(None, (f"{many} families cannot be told apart: {off}.", decide, hidden)))


def passed_over_sentences(choice: Choice) -> Iterator[str]:
    """Yield what is better on paper than the plan proposed, and what would be if it were likely to fit."""
    first, other = choice.best[0], choice.fastest
    if gain := gain_in_words(other, first, choice.objective):
        is_here = other.space.world_size == first.space.world_size
        devices = "" if is_here else f" on {other.space.world_size:,} devices of {other.space.setting.cluster.name}"
        yield f"{layout(other)}{devices} is {gain}."
    if choice.none_likely:
        yield none_likely_sentence()
    out = choice.crowded
    if out is not None and (gain := gain_in_words(out, first, choice.objective)):
        yield f"Left out: {layout(out)}, {gain}. {LETS_IN}"


def mixed_sentences(choice: MixedChoice, num_layers: int) -> Iterator[str]:
    """Yield what of the assignments may not fit, and what was left out because it may not."""
    if choice.none_likely:
        yield none_likely_sentence()
    out = choice.crowded
    if out and (gain := gain_of(1 - out.step_seconds / choice.best[0].step_seconds, "faster on paper")):
        yield f"Left out: {out.strategy.label(num_layers)}, {gain}, {out.odds_in_words}. {LETS_IN}"
    yield from unlikely_sentences(choice.best)


def _causal_sentence(plan: Candidate) -> Iterator[str]:
    """Yield the MFU that other ways to count give, where sequences are so long that it is clearly smaller."""
    model = plan.space.setting.model
    share = model_flops(model, 1, CAUSAL) / model_flops(model, 1)
    if model.seen_share == 1.0 and share < MOST_CAUSAL_SHARE:
        mfu = percent(share * plan.model_flops_utilization)
        yield f"MFU counts whole squares of attention; over their causal half it is {mfu}% for #1."


def _outside_sentences(shown: Sequence[Judged]) -> Iterator[str]:
    """Yield where plans lie outside of what was ever validated: the sides that most of them share first."""
    sides: dict[str, list[int]] = {}
    for number, judged in enumerate(shown, start=1):
        for side in judged.interval.outside:
            sides.setdefault(side, []).append(number)
    in_order = sorted(sides.items(), key=lambda item: -len(item[1]))
    for side, numbers in in_order[:MOST_OUTSIDE]:
        which = "all" if len(numbers) == len(shown) else ", ".join(f"#{number}" for number in numbers)
        yield f"Outside what was validated ({which}): {side}."
    if (more := len(in_order) - MOST_OUTSIDE) > 0:
        yield f"Outside what was validated on {more} more side{'s' * (more > 1)}, which --json names."
