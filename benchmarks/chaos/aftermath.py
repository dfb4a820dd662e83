"""What a repetition of a scenario found, in numbers."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from benchmarks.chaos.judge import Judgement


class Aftermath(BaseModel):
    """The state of a sweep after it was harmed and carried on.

    A scenario that could not be carried out, because the harm itself failed, says nothing of the sweep.

    Attributes:
        commands: with which the sweep was carried on after the harm.
        num_faults: how often harm was done.
        lost: trials that have no end, though nobody does anything more, and finished ones whose result is gone.
        twice: trials that ran to completion more than once.
        wrong: trials whose end, numbers or row in the report are not what was done to them; a traceback is one more.
        broken_off: 1 where the scenario could not be carried out.
        note: what went wrong, for people.
    """

    scenario: str
    num_trials: int
    commands: tuple[str, ...] = ()
    num_faults: int = 0
    lost: int = 0
    twice: int = 0
    wrong: int = 0
    broken_off: int = 0
    seconds: float
    note: str = ""

    @property
    def is_unharmed(self) -> bool:
        return not (self.lost or self.twice or self.wrong or self.broken_off)


def aftermath(
    scenario: str, seconds: float, verdict: Judgement, num_trials: int, num_faults: int, commands: Sequence[str]
) -> Aftermath:
    found = {"lost": verdict.lost, "twice": verdict.twice, "wrong": verdict.wrong}
    return Aftermath(
        scenario=scenario,
        num_trials=num_trials,
        commands=tuple(dict.fromkeys(commands)),
        num_faults=num_faults,
        seconds=seconds,
        note="; ".join(_note_of(what, names) for what, names in found.items() if names),
        **{what: len(names) for what, names in found.items()},
    )


def _note_of(what: str, names: Sequence[str]) -> str:
    return f"{what}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
