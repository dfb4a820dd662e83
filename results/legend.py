"""The legend of layout names: what each part of `tp4-pp8-dp32-mb1-gb640-sp` means."""

from __future__ import annotations

from collections.abc import Iterable

from conf.knobs import IN_ORDER_OF_LABELS, KnobValue, labelled_values
from conf.setup import Setup


def legend(setups: Iterable[Setup]) -> tuple[tuple[str, str], ...]:
    """Each part that occurs in the names of these layouts, with its meaning, in the order of the names.

    A part that differs in its number alone is explained once, by its largest number.
    """
    values: dict[str, dict[str, KnobValue]] = {}
    for setup in setups:
        for knob, value in labelled_values(setup.parallel, setup.batch, setup.layers_per_stage):
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
    return ", ".join(f"{part}: {meaning.partition(':')[0]}" for part, meaning in legend(setups))


def _larger(value: KnobValue, other: KnobValue) -> KnobValue:
    return max(value, other) if isinstance(value, int) and isinstance(other, int) else value
