"""Patterns for a log that none of the given ones reads: made from its own lines, and tried on them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from conf.grouped import grouped
from conf.overrides import quoted_text, shell_word
from launcher.command_trainer.printed_numbers import UnknownNotation, number_at

NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?")
KEYS = {"step": "step", "loss": "loss", "step_seconds": "seconds"}
BEFORE = {
    "step": re.compile(r"(?i)(?:step|iter\w*|it|batch|update)s?\W*$"),
    "loss": re.compile(r"(?i)(?<![a-z])(?:train_|lm )?(?:loss|nll|cost|train|objective|ce)\W{0,3}$"),
    "step_seconds": re.compile(r"(?i)(?<![a-z])(?:step_?|iter_?)?(?:time|dt|took|duration|seconds|sec)\W{0,3}$"),
}
A_TIME = re.compile(r" ?(?:[mu\u00b5]?s(?:ec)?(?:/(?:it|iter|step|batch))?|(?:it|iter|step|batch)(?:es|s)?/s)(?![\w/])")
NOT_OF_A_STEP = re.compile(r"(?i)(?:eta|left|remaining|total|epoch|elapsed)\W*$")
GROUP = {"step": r"(?P<step>\d+)", "loss": r"(?P<loss>[-+.,\w]+)", "step_seconds": r"(?P<step_seconds>[-+.,\de]+)"}
LONGEST = 100
"""Characters of a line that are shown."""


def advice(lines: Iterable[str], wanted: Sequence[str]) -> str:
    """The line of a log that seems to tell of a step, and an override for each quantity that was looked for in vain.

    Args:
        wanted: of `step`, `loss` and `step_seconds`.
    """
    alike = _lines_of_steps([line.strip() for line in lines])
    if not alike:
        return ""
    found = {quantity: pattern for quantity in wanted if (pattern := _pattern_for(quantity, alike))}
    overrides = (f"trainer.log.patterns.{KEYS[name]}={quoted_text(pattern)}" for name, pattern in found.items())
    give = f" Give {' '.join(map(_word, overrides))}" if found else ""
    return f'It prints "{alike[-1][:LONGEST]}{"..." * (len(alike[-1]) > LONGEST)}".{give}'


def _word(override: str) -> str:
    """In double quotes, in which a shell leaves single backslashes alone, where nothing else is special to it."""
    return shell_word(override) if re.search(r'["$`!]|\\\\', override) else f'"{override}"'


def _lines_of_steps(lines: Sequence[str]) -> list[str]:
    """The lines that differ in numbers alone, of which one rises; of several kinds the most frequent."""
    kinds = grouped((line for line in lines if NUMBER.search(line)), lambda line: NUMBER.sub("0", line))
    return max((kind for kind in kinds.values() if any(_rising(kind))), key=len, default=[])


def _rising(lines: Sequence[str]) -> list[bool]:
    """Of each of their numbers, whether it is a whole one that rises from line to line."""
    columns = zip(*([match[0] for match in NUMBER.finditer(line)] for line in lines), strict=True)
    return [
        len(set(column)) > 1
        and all(text.isdigit() for text in column)
        and list(map(int, column)) == sorted(map(int, column))
        for column in columns
    ]


def _pattern_for(quantity: str, lines: Sequence[str]) -> str:
    """A pattern that finds the quantity in all of these lines; empty where none is seen."""
    last = lines[-1]
    for found in _candidates(quantity, lines):
        for pattern in _patterns_around(last, found, quantity):
            match = re.search(pattern, last)
            if (
                match
                and match.start(quantity) == found.start()
                and all(_reads(pattern, each, quantity) for each in lines)
            ):
                return pattern
    return ""


def _candidates(quantity: str, lines: Sequence[str]) -> Iterator[re.Match[str]]:
    """The numbers of the last line that may be the quantity, the likeliest first."""
    numbers = [*NUMBER.finditer(lines[-1])]
    if quantity == "step":
        rising = _rising(lines)
        numbers = [number for number, rises in zip(numbers, rising, strict=True) if rises]
    numbers = [number for number in numbers if not NOT_OF_A_STEP.search(lines[-1][: number.start()])]
    yield from (number for number in numbers if BEFORE[quantity].search(lines[-1][: number.start()]))
    if quantity == "step":
        yield from numbers
    elif quantity == "step_seconds":
        yield from (number for number in reversed(numbers) if A_TIME.match(lines[-1], number.end()))


def _patterns_around(line: str, found: re.Match[str], quantity: str) -> Iterator[str]:
    """Patterns of what stands before the number and after it: of a word, and of all back to the number before."""
    before = line[: found.start()]
    word = re.search(r"[A-Za-z_]*[^A-Za-z_\d]*$", before)
    whole = re.search(r"[^\d]*$", before)
    unit = A_TIME.match(line, found.end()) if quantity == "step_seconds" else None
    after = (
        _literal(unit[0])
        if unit
        else re.escape(line[found.end()])
        if line[found.end() : found.end() + 1] in tuple("/|])%")
        else ""
    )
    for prefix in dict.fromkeys(match[0] for match in (word, whole) if match):
        start = "^" if prefix == before else r"\b" if prefix[:1].isalpha() else ""
        yield f"{start}{_literal(prefix)}{GROUP[quantity]}{after}"


def _literal(text: str) -> str:
    """A pattern of just this text, in which blanks may be as many as there are."""
    return r"\s*".join(re.escape(part) for part in re.split(r"\s+", text))


def _reads(pattern: str, line: str, quantity: str) -> bool:
    match = re.search(pattern, line)
    try:
        return match is not None and number_at(line, match.span(quantity), len(line), quantity, "point") is not None
    except UnknownNotation:
        return False
