"""The legend of names of layouts: what each of their parts means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from conf.plan.knobs import IN_ORDER_OF_LABELS, Knob, KnobValue, labelled_values
from conf.plan.setup import Setup


def legend(setups: Iterable[Setup]) -> tuple[tuple[str, str], ...]:
    """Each part of the names of these layouts with its meaning, once for those that differ in their number alone."""
    return _explain_parts(labelled_values(each.parallel, each.batch, each.layers_per_stage) for each in setups)


def _explain_parts(names: Iterable[Sequence[tuple[Knob, KnobValue]]]) -> tuple[tuple[str, str], ...]:
    values: dict[str, dict[str, KnobValue]] = {}
    for name in names:
        for knob, value in name:
            seen = values.setdefault(knob.name, {})
            explained = str(value) if knob.value_meanings else ""
            other = seen.get(explained)
            seen[explained] = max(value, other) if isinstance(value, int) and isinstance(other, int) else value
    return tuple(
        (knob.label_of(value), knob.meaning_of(value))
        for knob in IN_ORDER_OF_LABELS
        for value in values.get(knob.name, {}).values()
    )


def legend_text(setups: Iterable[Setup]) -> str:
    """The same on one line, for terminals and plain text; empty where there is nothing to explain."""
    return "; ".join(f"{part} = {meaning}" for part, meaning in legend(setups))


def legend_in_short(setups: Iterable[Setup]) -> str:
    """The same without what stands behind the colon of a meaning, for the caption of a table in a terminal."""
    return _short_text(legend(setups))


def names_in_short(names: Iterable[Sequence[tuple[Knob, KnobValue]]]) -> str:
    """The same for names of plans that are no setups, by the knobs that each mentions and their values."""
    return _short_text(_explain_parts(names))


def _short_text(legend: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{part}: {meaning.partition(':')[0]}" for part, meaning in legend)
