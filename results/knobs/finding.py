"""What the sensitivities come to, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from results.knobs.sensitivity import KnobEffect, Sensitivity
from results.knobs.table import shown
from results.units import percent


def finding(found: Sensitivity) -> str:
    """Which knob mattered most, or that the trials do not tell."""
    trials = f"{found.num_points} {'measured trials' if found.rates_are == 'measured' else 'predicted points'}"
    if not found.is_told:
        explained = percent(max(0.0, found.explained))
        return (
            f"These {trials} do not tell which knob mattered: the knobs explain {explained} % of the differences"
            f" between trials that were left out."
        )
    leaders = found.leaders
    if len(leaders) == 1:
        return f"{_capital(leaders[0].column.words)} mattered most in {trials}: {_what_it_does(leaders[0])}."
    named = _listed([effect.column.words for effect in leaders])
    does = _what_it_does(max(leaders, key=lambda effect: effect.share))
    return f"{_capital(named)} mattered most, and {trials} do not tell which of them more: {does}."


def _what_it_does(effect: KnobEffect) -> str:
    return (
        f"{effect.column.words} {shown(effect.fastest_at)} is {100 * effect.gain:.0f} % faster than"
        f" {shown(effect.slowest_at)} with all other knobs as they were"
    )


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
