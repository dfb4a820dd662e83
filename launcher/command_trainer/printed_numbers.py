"""Reads numbers as programs print them, with their units. What may mean two things, or is not known, is no number."""

from __future__ import annotations

import re
from collections.abc import Mapping

from conf.types.trainer_spec import TIMES, Decimal

OPENING = re.compile(r"[\s\[({\"'$~]*(?:(?:tensor|array|np\.float\d+)\()?[\s\[(]*")
NUMBER = re.compile(
    r"(?P<value>[-+]?(?P<body>[.,]?\d+(?:[.,]\d+|[_'\u2019\u00a0\u2009\u202f]\d{3}(?!\d))*(?:\.(?=[eE]))?)(?P<exponent>[eEdD][-+]?\d+)?)(?P<word>[^\W\d_]*)"
)
NOT_FINITE = re.compile(r"[-+]?(?:nan|inf(?:inity)?)(?!\w)", re.IGNORECASE)
SPACED = re.compile(r"[-+]?\d{1,3}(?: \d{3})+(?![\w.,])")
SEPARATORS = re.compile(r"[_'\u2019\u00a0\u2009\u202f]")
PLAIN = re.compile(r"\d+\.?\d*|\.\d+")
GROUPED = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")
GROUPED_BY_POINTS = re.compile(r"[1-9]\d{0,2}(?:\.\d{3})+,\d+")
SWAPPED = str.maketrans(".,", ",.")

WHOLE = re.compile(r"step|epoch|tokens_.*|tflops|memory_.*")
"""Quantities of which nobody prints three decimals behind a comma: there it sets thousands apart."""

SECONDS: Mapping[str, float] = {
    unit: seconds
    for units, seconds in {
        "ns nsec nanosecond": 1e-9,
        "us \u00b5s \u03bcs usec microsecond": 1e-6,
        "ms msec millisecond": 1e-3,
        "s sec second": 1.0,
        "min minute": 60.0,
        "h hr hour": 3600.0,
    }.items()
    for unit in units.split()
}
A_STEP = r"(?:it|iter|iteration|step|batch|b)(?:s|es)?"
UNIT = re.compile(
    rf"(?P<gap> )?(?P<rate>{A_STEP}/)?(?P<unit>{'|'.join(sorted(SECONDS, key=len, reverse=True))})s?(?:/{A_STEP})?"
    r"(?![\w/])(?(gap)(?![:=]))"
)
OF_A_CLOCK = ("step_seconds", "step_milliseconds", "steps_per_second")
MULTIPLES: Mapping[str, float] = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
MULTIPLE = re.compile(r"([kKMGBT])(?!\w)")
RATE = re.compile(r" ?([kKMGT]?)(?:(?:it|im|tok|samp|seq|ex|batch|step|word|sent)[a-z]*(?:/s\w*)?|/s\w*)?(?![\w/])")
OF_A_LOSS = re.compile(r"(?:nats?|bits?|bp[bct]|ppl|dB|pts)?(?!\w|[\u00d7\u00b7^*]\d)|[^\W\d]\w*[:=]")
OF_A_STEP = re.compile(rf"(?:{A_STEP}|st|nd|rd|th)?(?![^\W_])")


class UnknownNotation(ValueError):
    """A text has digits, and nobody can say which number it is; `readings` are those that it may be."""

    def __init__(self, text: str, *readings: float) -> None:
        super().__init__(text)
        self.text, self.readings = text, readings


def number_at(line: str, span: tuple[int, int], limit: int, quantity: str, decimal: Decimal | None) -> float | None:
    """The number that begins where a pattern found it in a line, in the unit of its quantity; None without one.

    The pattern may have found a part of it, such as 4 of 4,800 or 2.10 of 2.10E-01: it is read to its end, or to the
    limit, where the next thing begins that the pattern found.

    Raises:
        UnknownNotation: it may be two numbers, or is none that is known.
    """
    opening = OPENING.match(line, span[0], limit)
    begin = opening.end() if opening else span[0]
    if special := NOT_FINITE.match(line, begin, limit):
        return float(special[0])
    if spaced := SPACED.match(line, begin, span[1]):
        return float(spaced[0].replace(" ", ""))
    found = NUMBER.match(line, begin, limit)
    if found is None:
        return None
    body, whole = _with_point(found, quantity, decimal)
    end = found.start("word") if whole else len(line)
    sign, exponent = found["value"][: found.start("body") - found.start()], found["exponent"] or ""
    value = float(sign + body + (exponent.translate(str.maketrans("dD", "ee")) if whole else ""))
    return _in_unit(value, quantity, line, end, line[found.start() :].split(maxsplit=1)[0])


def _with_point(found: re.Match[str], quantity: str, decimal: Decimal | None) -> tuple[str, bool]:
    """The digits as Python writes them; and False if a comma ends them, as in a list.

    Raises:
        UnknownNotation: a comma, or several points, may mean two things.
    """
    body, text = SEPARATORS.sub("", found["body"]), found[0]
    if decimal == "comma":
        swapped = body.translate(SWAPPED)
        if PLAIN.fullmatch(swapped) or GROUPED.fullmatch(swapped):
            return swapped.replace(",", ""), True
    if PLAIN.fullmatch(body):
        return body, True
    if GROUPED.fullmatch(body):
        bare = body.replace(",", "")
        if decimal == "point" or len(body) - len(bare) > 1 or "." in body or WHOLE.fullmatch(quantity):
            return bare, True
        raise UnknownNotation(text, float(body.replace(",", ".")), float(bare))
    first = body.partition(",")[0]
    if (
        (decimal == "point" or "." in first)
        and PLAIN.fullmatch(first)
        and not (decimal is None and GROUPED_BY_POINTS.fullmatch(body))
    ):
        return first, False
    swapped = body.translate(SWAPPED).replace(",", "")
    raise UnknownNotation(text, *([float(swapped)] if "," in body and PLAIN.fullmatch(swapped) else []))


def _in_unit(value: float, quantity: str, line: str, end: int, text: str) -> float | None:
    """The value in the unit of its quantity, by what follows it in the line.

    Raises:
        UnknownNotation: nobody knows what follows.
    """
    if quantity in OF_A_CLOCK:
        return _time(value, quantity, line, end, text)
    if quantity in ("step", "epoch"):
        return value if OF_A_STEP.match(line, end) else None
    if quantity in TIMES:
        if (rate := RATE.match(line, end)) is None:
            raise UnknownNotation(text)
        return value * MULTIPLES.get(rate[1], 1.0)
    if quantity == "tflops" or quantity.startswith("memory_") or OF_A_LOSS.match(line, end):
        return value
    multiple = MULTIPLE.match(line, end)
    if multiple is None:
        raise UnknownNotation(text)
    return value * MULTIPLES[multiple[1]]


def _time(value: float, quantity: str, line: str, end: int, text: str) -> float:
    own = 1e-3 if quantity == "step_milliseconds" else 1.0
    unit = UNIT.match(line, end)
    if unit is None:
        if re.match(r"[^\W_]|:\d|/(?!\d)\w", line[end:]):  # 0.2x, a clock's 0:02, or seconds of another thing
            raise UnknownNotation(text)
        return value
    seconds = SECONDS[unit["unit"]] * value
    if unit["rate"]:
        if value <= 0:
            return 0.0
        seconds = SECONDS[unit["unit"]] / value
    return 1 / seconds if quantity == "steps_per_second" and seconds > 0 else seconds / own
