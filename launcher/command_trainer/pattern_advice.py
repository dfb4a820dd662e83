"""Patterns for a log that none of the given ones reads: made from its own lines, and tried on them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

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
    return max((kind for kind in kinds.values() if any(_rises(kind))), key=len, default=[])


def _rises(lines: Sequence[str]) -> list[int]:
    """Of each of their numbers, how often it rises; 0 of one that falls other than to where it began."""
    columns = zip(*([match[0] for match in NUMBER.finditer(line)] for line in lines), strict=True)
    return [_count_of_rises([float(text) for text in map(_leading, column)]) for column in columns]


def _leading(text: str) -> str:
    """The number with which a text such as 4.1.2 or 4,8 begins."""
    return re.split(r"(?<=\d)[.,](?=\d+[.,])|,", text)[0]


def _count_of_rises(numbers: Sequence[float]) -> int:
    falls = [after for before, after in pairwise(numbers) if after < before]
    rises = sum(after > before for before, after in pairwise(numbers))
    return rises if rises > len(falls) and all(after <= numbers[0] for after in falls) else 0


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
    rises = dict(zip(NUMBER.finditer(lines[-1]), _rises(lines), strict=True))
    numbers = [*rises]
    if quantity == "step":  # the number of an epoch rises too, though less often
        whole = [each for each in numbers if each[0].isdigit() and rises[each] and lines[-1][each.end() :][:1] != "%"]
        numbers = sorted(whole, key=lambda each: -rises[each])
    elif quantity == "step_seconds":  # what rises from each line to the next is the time since the start
        numbers = [number for number in numbers if rises[number] < max(len(lines) - 1, 2)]
    else:
        numbers = [number for number in numbers if not number[0].isdigit()]
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
        is_word = prefix[:1].isalpha() and not before.removesuffix(prefix)[-1:].isdigit()
        start = "^" if prefix == before else r"\b" if is_word else ""
        blanks = r"\s*" if prefix[-1:] in tuple("[(/|") else ""  # numbers of fewer digits may have some before them
        yield f"{start}{_literal(prefix)}{blanks}{GROUP[quantity]}{after}"


def _literal(text: str) -> str:
    """A pattern of just this text, in which blanks may be as many as there are."""
    return r"\s*".join(re.escape(part) for part in re.split(r"\s+", text))


def _reads(pattern: str, line: str, quantity: str) -> bool:
    match = re.search(pattern, line)
    try:
        return match is not None and number_at(line, match.span(quantity), len(line), quantity, "point") is not None
    except UnknownNotation:
        return False
