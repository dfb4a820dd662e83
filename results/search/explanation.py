"""A plan taken apart, for a terminal and for JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from conf.units import GIBIBYTE
from results.table import Table, text
from results.units import gib, seconds
from sweeps.planner.choosing.explain import Alternative, Explanation

SMALLEST_SHARE = 0.001
"""A smaller part of the step, or of the memory, is not worth a word."""


def explanation_lines(explanation: Explanation) -> Iterator[RenderableType]:
    """The lines to print, and at the end the table of alternatives."""
    predicted = explanation.estimate
    if predicted is None:
        yield Text.assemble((explanation.label, "bold"), f" cannot exist: {explanation.reason or ''}")
        return
    step, capacity = predicted.step_seconds, predicted.memory_capacity_bytes
    yield Text.assemble((explanation.label, "bold"), f": predicted {seconds(step)} s a step")
    yield "  time    " + _shares(explanation.terms, step, seconds, " s")
    yield (
        f"  memory  stage {predicted.worst_stage} of {len(predicted.stages)} needs most,"
        f" {gib(predicted.peak_memory_bytes)} of {gib(capacity)} GiB: "
        + _shares(explanation.memory, predicted.peak_memory_bytes, gib, " GiB")
    )
    yield "  " + _binding(explanation)
    yield _alternatives(explanation)


def _shares(parts: dict[str, Any], whole: float, shown: Any, unit: str) -> str:
    words = [
        f"{name.removesuffix('_seconds').removesuffix('_bytes')} {shown(value)}{unit} ({100 * value / whole:.0f} %)"
        for name, value in parts.items()
        if value > SMALLEST_SHARE * whole
    ]
    return ", ".join(words)


def _binding(explanation: Explanation) -> str:
    """One sentence on what limits this plan, which is what to look at first."""
    if explanation.reason:
        return f"What binds: memory; it {explanation.reason}."
    largest = next(iter(explanation.terms)).removesuffix("_seconds")
    blocked = [
        alternative
        for alternative in explanation.alternatives
        if alternative.estimate is not None and alternative.reason is not None
    ]
    free = f"{gib(explanation.headroom_bytes)} GiB are free"
    if not blocked:
        return f"What binds: {largest}; {free}, and no neighbour lacks memory."
    return f"What binds: {largest}; {free}, and {len(blocked)} of its neighbours lack memory."


def _alternatives(explanation: Explanation) -> Table:
    rows = []
    for alternative in explanation.alternatives:
        predicted = alternative.estimate
        row = (
            alternative.knob,
            alternative.value,
            seconds(predicted.step_seconds if predicted else None),
            "" if alternative.slower is None else f"{100 * alternative.slower:+.1f} %",
            gib(predicted.peak_memory_bytes if predicted else None),
            alternative.reason or "",
        )
        rows.append(tuple(map(text, row)))
    columns = ("knob", "value", "step s", "slower", "GiB", "why not")
    numeric, title = frozenset({"step s", "slower", "GiB"}), "One knob changed, predicted"
    longest = max((len(alternative.knob) for alternative in explanation.alternatives), default=0)
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
        "predicted_peak_memory_gib": predicted.peak_memory_bytes / GIBIBYTE,
        "memory_capacity_gib": predicted.memory_capacity_bytes / GIBIBYTE,
        "predicted_memory_gib": {
            name.removesuffix("_bytes"): value / GIBIBYTE for name, value in explanation.memory.items()
        },
        "alternatives": [_alternative_document(alternative) for alternative in explanation.alternatives],
    }


def _alternative_document(alternative: Alternative) -> dict[str, object]:
    predicted = alternative.estimate
    return {
        "knob": alternative.knob,
        "value": alternative.value,
        "predicted_step_seconds": predicted.step_seconds if predicted else None,
        "predicted_peak_memory_gib": predicted.peak_memory_bytes / GIBIBYTE if predicted else None,
        "predicted_slower_percent": None if alternative.slower is None else 100 * alternative.slower,
        "infeasible_reason": alternative.reason,
    }
