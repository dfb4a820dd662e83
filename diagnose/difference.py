"""What differs between two runs, and how much of their difference in time is priced.

Differences are priced one after the other, so that their prices add up to that between the two predictions. Those that
cannot exist alone, such as other numbers of stages and of tensor ranks, are priced together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from conf.folders import package_content
from diagnose.diagnosis import Diagnosis
from diagnose.network_fit import NetworkFit, network_of
from diagnose.runs import Fact, LogLine, UserRun
from diagnose.understood import Understood, price_of
from sweeps.table.cells import text_of
from sweeps.table.columns import MEASURED_COLUMNS

MOST_SETTINGS, LONGEST_VALUE = 12, 24
NO_CAUSE = tuple(package_content("settings.yaml", __package__)["no_cause"].split())
"""Parts of names of settings that decide no speed."""


@dataclass(frozen=True)
class RunChange:
    """One thing that the second run has otherwise. `seconds` are None without a price."""

    says: str
    seconds: float | None
    at: LogLine | None


@dataclass(frozen=True)
class RunDifference:
    """Two runs beside each other.

    Attributes:
        measured_seconds, predicted_seconds: of a step of both; None where one of them has none.
        network: what both together say of the network, where they differ in their batch alone.
    """

    before: str
    after: str
    changes: tuple[RunChange, ...]
    measured_seconds: tuple[float, float] | None
    predicted_seconds: tuple[float, float] | None
    network: NetworkFit | None

    @property
    def measured_in_words(self) -> str:
        return "" if self.measured_seconds is None else _in_words(*self.measured_seconds)

    @property
    def predicted_in_words(self) -> str:
        if self.predicted_seconds is None:
            return "one of the two has no prediction"
        words = _in_words(*self.predicted_seconds)
        if self.measured_seconds is None:
            return words
        (before, after), (low, high) = self.measured_seconds, self.predicted_seconds
        if abs(after / before - 1) < 0.01:
            return words
        return f"{words}: {(high / low - 1) / (after / before - 1):.0%} of what was measured"


def _in_words(before: float, after: float) -> str:
    return f"{before:.3g} s, then {after:.3g} s a step ({after / before - 1:+.1%})"


def difference(one: Diagnosis, other: Diagnosis) -> RunDifference:
    """How the second run differs from the first."""
    seen, predicted = (one.measured, other.measured), (one.understood.predicted, other.understood.predicted)
    changes = [*_priced(one.understood, other.understood), *_unpriced(one.run, other.run)]
    return RunDifference(
        one.run.name,
        other.run.name,
        tuple(changes),
        (seen[0].step_seconds, seen[1].step_seconds) if seen[0] and seen[1] else None,
        (predicted[0].step_seconds, predicted[1].step_seconds) if predicted[0] and predicted[1] else None,
        network_of(one, other),
    )


@dataclass
class _Chain:
    """The way from the first run's prediction to the second one's."""

    known: Understood
    seconds: float
    columns: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def step(self) -> float | None:
        """What the changes since the last price cost together; None where they cannot exist yet."""
        changed = self.known.changed(self.columns, self.facts)
        if changed is None:
            return None
        seconds = price_of([changed])[0].step_seconds
        cost, self.seconds = seconds - self.seconds, seconds
        return cost


def _priced(one: Understood, other: Understood) -> Iterator[RunChange]:
    """The cells and flags that differ, each with what it costs."""
    cells = [
        (column, text_of(one.row, column), text_of(other.row, column))
        for column in dict.fromkeys((*one.row, *other.row))
        if column not in MEASURED_COLUMNS and text_of(one.row, column) != text_of(other.row, column)
    ]
    start = one.predicted
    chain = _Chain(one, start.step_seconds) if start is not None else None
    waiting: list[str] = []
    for column, before, after in cells:
        says = f"{column} {before or 'not said'} -> {after or 'not said'}"
        if chain is not None:
            chain.columns[column] = after
        seconds = chain.step() if chain else None
        if seconds is None and chain is not None:
            waiting.append(says)
            continue
        yield RunChange("; ".join([*waiting, says]), seconds, _line_of(other.run.columns.get(column)))
        waiting.clear()
    if waiting:
        yield RunChange("; ".join(waiting), None, None)
    yield from _flags(one, other, chain)


def _flags(one: Understood, other: Understood, chain: _Chain | None) -> Iterator[RunChange]:
    before = {flag.name: (flag, evidence) for flag, evidence in one.wrong_flags}
    after = {flag.name: (flag, evidence) for flag, evidence in other.wrong_flags}
    for name in [*(set(after) - set(before)), *(set(before) - set(after))]:
        flag, evidence = after.get(name) or before[name]
        if chain is not None and other.configuration is not None:
            trainer = other.configuration.implementation
            chain.facts |= {fact: getattr(trainer, fact) for fact in flag.without}
        verb = "is missing now" if name in after else "is there now"
        yield RunChange(f"{flag.name} {verb}", chain.step() if chain else None, evidence.at)


def _unpriced(one: UserRun, other: UserRun) -> Iterator[RunChange]:
    """Other settings that differ, of which nobody knows what they cost."""
    of_columns = {fact.at for fact in (*one.columns.values(), *other.columns.values()) if fact.at and fact.at.line}
    differing = [
        (name, one.settings[name].value, fact)
        for name, fact in other.settings.items()
        if name in one.settings
        and one.settings[name].value.lower() != fact.value.lower()
        and fact.at not in of_columns
        and not any(part in name.lower() for part in NO_CAUSE)
        and max(len(fact.value), len(one.settings[name].value)) <= LONGEST_VALUE
    ]
    for name, before, fact in differing[:MOST_SETTINGS]:
        yield RunChange(f"{name} {before} -> {fact.value}", None, fact.at)
    if len(differing) > MOST_SETTINGS:
        yield RunChange(f"and {len(differing) - MOST_SETTINGS} more settings", None, None)


def _line_of(fact: Fact | None) -> LogLine | None:
    return fact.at if fact else None
