"""The legend of layout names: what each part of `tp4-pp8-dp32-mb1-gb640-sp` means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from conf.knobs import IN_ORDER_OF_LABELS, Knob, KnobValue, labelled_values
from conf.setup import Setup


def legend(setups: Iterable[Setup]) -> tuple[tuple[str, str], ...]:
    """Each part that occurs in the names of these layouts, with its meaning, in the order of the names.

    A part that differs in its number alone is explained once, by its largest number.
    """
    return _explained(labelled_values(each.parallel, each.batch, each.layers_per_stage) for each in setups)


def _explained(names: Iterable[Sequence[tuple[Knob, KnobValue]]]) -> tuple[tuple[str, str], ...]:
    values: dict[str, dict[str, KnobValue]] = {}
    for name in names:
        for knob, value in name:
            seen = values.setdefault(knob.name, {})
            explained = str(value) if knob.value_meanings else ""
            seen[explained] = _larger(value, seen.get(explained))
    return tuple(
        (knob.labelled(value), knob.explained(value))
        for knob in IN_ORDER_OF_LABELS
        for value in values.get(knob.name, {}).values()
    )


def legend_text(setups: Iterable[Setup]) -> str:
    """The same on one line, for terminals and plain text; empty where there is nothing to explain."""
    return "; ".join(f"{part} = {meaning}" for part, meaning in legend(setups))


def legend_in_short(setups: Iterable[Setup]) -> str:
    """The same without what stands behind the colon of a meaning, for the caption of a table in a terminal."""
    return _in_short(legend(setups))


def names_in_short(names: Iterable[Sequence[tuple[Knob, KnobValue]]]) -> str:
    """The same for names of plans that are no setups, by the knobs that each mentions and their values."""
    return _in_short(_explained(names))


def _in_short(legend: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{part}: {meaning.partition(':')[0]}" for part, meaning in legend)


def _larger(value: KnobValue, other: KnobValue) -> KnobValue:
    return max(value, other) if isinstance(value, int) and isinstance(other, int) else value
