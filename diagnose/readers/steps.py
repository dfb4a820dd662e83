"""The figures of lines about steps: the time, the rates and the memory that one line tells."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from diagnose.readers.formats import PAIR, QUANTITIES, SHARE, StepFormat
from launcher.command_trainer.printed_numbers import GROUPED, UnknownNotation, number_at

AS_READ = {
    "seconds": "step_seconds",
    "tflops": "tflops",
    "memory_share": "tflops",
    "tokens_per_device": "tokens_per_second",
    "tokens": "tokens_per_second",
    "tokens_of_some": "tokens_per_second",
    "memory": "memory_gib",
    "allocated": "memory_gib",
    **dict.fromkeys(("step", "of", "epoch"), "tokens_per_second"),
}
A100_TFLOPS = 312.0
NUMBER = re.compile(r"\.?\d[\d.,_]*(?:[eE][-+]?\d+)?")
NO_DIGITS = str.maketrans("", "", "0123456789")
OF_A_COMMA = re.compile(r"\d{1,3},(?:\d{1,2}|\d{4,})$")
OF_POWERS = re.compile(r"\d,\d+[eE][-+]?\d+")
MOST_SHAPES = 10_000
OF_THOUSANDS = ("tokens_per_second", "tflops", "memory_gib")
"""Quantities of which nobody prints three decimals behind a comma."""
ANYTHING = (-1e15, 1e15)
UNITS = {"ms": 1e-3, "s": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "%": 1e-2}
PLAUSIBLE = {
    "seconds": (1e-4, 1e6),
    "tflops": (0.0, 1e5),
    "mfu": (0.0, 100.0),
    **dict.fromkeys(("memory", "allocated"), (1.0, 1e13)),
    "batch": (1, 1e9),
}


class FigureSlot(NamedTuple):
    """Where a line has a figure: the place among its numbers, what it is, and what it is multiplied by."""

    place: int
    quantity: str
    scale: float


class FigureReader:
    """Reads the figures of lines about steps.

    Lines with the same words have their figures in the same places, which are looked for once: a long log of steps is
    read in a third of the time.
    """

    def __init__(self, slots_of: Callable[[str, StepFormat], Iterator[FigureSlot]]) -> None:
        self._slots_of, self._has_commas = slots_of, False
        self._slots: dict[tuple[str, str], tuple[int, tuple[FigureSlot, ...]]] = {}

    def figures(self, line: str, step_format: StepFormat) -> dict[str, float]:
        """The quantities of a line, in seconds, tokens a second, bytes, TFLOPS and shares of 1."""
        shape, numbers = (step_format.program, line.translate(NO_DIGITS)), NUMBER.findall(line)
        known = self._slots.get(shape)
        if known is None or known[0] != len(numbers):
            if len(self._slots) >= MOST_SHAPES:
                self._slots.clear()
            self._slots[shape] = known = (len(numbers), tuple(self._slots_of(line, step_format)))
        found: dict[str, float] = {}
        if not step_format.program and not self._has_commas:  # one figure such as 3,2 tells what 1,234 is
            self._has_commas = any(OF_A_COMMA.match(numbers[slot.place]) for slot in known[1])
        for place, quantity, scale in known[1]:
            text = numbers[place].replace(".", "").replace(",", ".") if self._has_commas else numbers[place]
            value = read_number(text, AS_READ.get(quantity, "loss"))
            low, high = PLAUSIBLE.get(quantity, ANYTHING)
            if value is not None and low <= value * scale <= high:
                found.setdefault(quantity, value * scale)
        if found.get("mfu", 0) > 1.5:  # nanochat prints percent without saying so
            found["mfu"] /= 100
        if step_format.program == "nanogpt" and "mfu" in found:  # whatever the device, of an A100's peak
            found["tflops"] = found.pop("mfu") * A100_TFLOPS
        return found


def named_slots(line: str, step_format: StepFormat) -> Iterator[FigureSlot]:
    places = {match.start(): place for place, match in enumerate(NUMBER.finditer(line))}
    for match in (step_format.pair or PAIR).finditer(line):
        name, text, unit = match[1].lower(), match[2], match[3]
        known = step_format.own.get(name) or QUANTITIES.get(name) or QUANTITIES.get(name.rpartition(") ")[2])
        is_signed = text[0] in "-+"
        place = places.get(match.start(2) + is_signed)
        if known is None or place is None:
            continue
        quantity, scale = known
        scale = 1.0 if quantity in ("seconds", "elapsed") and unit in ("ms", "s") else scale
        yield FigureSlot(place, quantity, scale * UNITS.get(unit, 1.0) * (-1 if text[0] == "-" else 1))
    share = SHARE.search(line)
    if share is not None and share.start(1) in places:
        yield FigureSlot(places[share.start(1)], "memory_share", 0.01)


def number_of_step(match: re.Match[str]) -> int:
    """The number that the pattern of a format has found, counted on over epochs where these begin anew."""
    groups = match.groupdict()
    number = int((groups.get("step") or match[1]).replace(",", ""))
    epoch = int(groups.get("epoch") or 1)
    return number + max(epoch - 1, 0) * int(groups.get("of") or 0)


def read_number(text: str, quantity: str) -> float | None:
    """A figure as it is printed, with thousands set apart or with a decimal comma; None where it may be two numbers."""
    try:
        return float(text)
    except ValueError:
        text = text.rstrip(".,_")
    if OF_POWERS.fullmatch(text):
        return float(text.replace(",", "."))
    if quantity in OF_THOUSANDS and GROUPED.fullmatch(text):
        return float(text.replace(",", ""))
    try:
        return number_at(text, (0, len(text)), len(text), quantity, None)
    except UnknownNotation as unknown:
        return unknown.readings[0] if len(unknown.readings) == 1 else None
    except ValueError:
        return None
