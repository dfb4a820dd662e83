"""What is said of a run, put together: of two facts the one that is believed, values in one notation."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence

from diagnose.runs import Fact, LogLine, SaidBy, UserRun

BELIEVED = {said_by: place for place, said_by in enumerate(SaidBy)}
NOTHING = ("", "none", "null", "~", "nan")
PRINTED = ("mesh.", "device_", "nccl_", "num_parameters", "peak_flops", "ranks_heard", "sbatch.", "parameters_on_rank")
"""Names of settings that a log tells without its arguments."""
LEAST_OF_A_DUMP = 8
YES, NO = ("true", "yes", "on"), ("false", "no", "off")


def text_of(value: object) -> str:
    """A value of any file in the notation of a printed dump: `True`, `None`, `2048`."""
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, default=str)
    return " ".join(str(value).split())


def says(run: UserRun, name: str, value: object, said_by: SaidBy, at: LogLine | None, note: str = "") -> None:
    """Take a setting down; the one that is believed less is kept beside, where it says something else."""
    fact, known = Fact(text_of(value), said_by, at, note), run.settings.get(name)
    if known is None:
        run.settings[name] = fact
        return
    is_believed = belief(name, fact) <= belief(name, known)
    if is_believed:
        run.settings[name] = fact
    if not same(known.value, fact.value):
        others = run.overruled.setdefault(name, [])
        if (loser := known if is_believed else fact) not in others and len(others) < 8:
            others.append(loser)


def belief(name: str, fact: Fact) -> float:
    """The place of a fact among those that are believed; a dotted flag is there to correct the file with that name."""
    return BELIEVED[SaidBy.FILE] - 0.5 if fact.said_by is SaidBy.FLAG and "." in name else BELIEVED[fact.said_by]


def same(one: str, other: str) -> bool:
    """True if two texts are one value: `True` and `true`, 2048 and 2048.0."""
    return one.lower() == other.lower() or (number(one) is not None and number(one) == number(other))


def number(text: str) -> float | None:
    """The number that a text is; None of anything else, infinite ones included."""
    try:
        value = float(text.strip("'\" ").replace("_", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


class SaidSettings:
    """The settings of a run, asked for by any of the names that versions of a trainer have for one thing."""

    def __init__(self, run: UserRun, sections: Sequence[str] = ()) -> None:
        """Look settings up by their names, and by those inside of sections, such as `model.`, the first one first."""
        inside = {
            name.removeprefix(section): fact
            for section in reversed(sections)
            for name, fact in run.settings.items()
            if name.startswith(section) and "." not in name.removeprefix(section)
        }
        self.run, self.known = run, inside | run.settings

    def fact(self, *names: str, is_count: bool = False) -> Fact | None:
        """The most believed fact of several names that says something; None where all say nothing.

        Args:
            is_count: of a count `auto` says nothing either.
        """
        known = ((name, self.known[name]) for name in names if name in self.known)
        nothing = (*NOTHING, "auto") if is_count else NOTHING
        said = [(belief(name, fact), fact) for name, fact in known if fact.value.lower().strip("'\"") not in nothing]
        return min(
            ((place, fact) for place, fact in said if "$" not in fact.value),
            key=lambda pair: pair[0],
            default=(0, None),
        )[1]

    def text(self, *names: str) -> str:
        return fact.value.strip("'\"") if (fact := self.fact(*names)) else ""

    def whole(self, *names: str) -> int | None:
        """A whole number above zero; trainers write 0 and -1 where they mean none."""
        fact = self.fact(*names, is_count=True)
        value = number(fact.value) if fact else None
        return int(value) if value is not None and value > 0 and value == int(value) else None

    def truth(self, name: str, *negations: str) -> bool | None:
        """Whether something is on; what says the contrary stands under names of its own. None: nobody says it."""
        answers = [(self.fact(name), False), *((self.fact(each), True) for each in negations)]
        for fact, is_negated in answers:
            word = fact.value.lower() if fact else ""
            if word in YES or word == "1":
                return not is_negated
            if word in NO or word == "0":
                return is_negated
        return None

    @property
    def has_arguments(self) -> bool:
        """True if the arguments are there; in a log that begins behind them, what is not said is no default."""
        said = [fact for name, fact in self.run.settings.items() if not name.isupper() and not name.startswith(PRINTED)]
        said = [fact for fact in said if fact.said_by is not SaidBy.PROSE]
        return any(fact.said_by in (SaidBy.FILE, SaidBy.FLAG) for fact in said) or len(said) >= LEAST_OF_A_DUMP

    def is_known(self, *names: str) -> bool:
        return any(name in self.known for name in names)


class Columns:
    """Fills the columns of `trisweep estimate` from the settings of a run; who says a setting says the column."""

    def __init__(self, run: UserRun, sections: Sequence[str] = ()) -> None:
        self.run, self.settings = run, SaidSettings(run, sections)

    def put(self, column: str, value: object, *names: str, note: str = "") -> None:
        """A column as it follows from the first named setting that is known; with none of them, nothing is put."""
        if (source := self._source(names)) is not None and value is not None:
            self.take(column, Fact(_cell(value), source.said_by, source.at, note or source.note))

    def take(self, column: str, fact: Fact) -> None:
        known = self.run.columns.get(column)
        if known is None or BELIEVED[fact.said_by] < BELIEVED[known.said_by]:
            self.run.columns[column] = fact

    def whole(self, column: str, *names: str) -> None:
        """A count that a setting states as it is."""
        fact, value = self.settings.fact(*names, is_count=True), self.settings.whole(*names)
        if fact is not None and value is not None:
            self.take(column, Fact(str(value), fact.said_by, fact.at, fact.note))

    def truth(self, column: str, name: str, *negations: str) -> None:
        if (answer := self.settings.truth(name, *negations)) is not None:
            self.put(column, answer, name, *negations)

    def computed(self, column: str, value: object, at: LogLine | None, note: str) -> None:
        self.take(column, Fact(_cell(value), SaidBy.COMPUTED, at, note))

    def assumed(self, column: str, value: object, note: str) -> None:
        self.take(column, Fact(_cell(value), SaidBy.ASSUMED, None, note))

    def count(self, column: str) -> int | None:
        """The whole number in a column; None where it is empty."""
        fact = self.run.columns.get(column)
        value = number(fact.value) if fact else None
        return int(value) if value is not None and value == int(value) else None

    def text(self, column: str) -> str:
        return fact.value if (fact := self.run.columns.get(column)) else ""

    def _source(self, names: Iterable[str]) -> Fact | None:
        found = [(belief(name, fact), fact) for name in names if (fact := self.settings.known.get(name))]
        return min(found, key=lambda pair: pair[0], default=(0, None))[1]


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return text_of(value)
