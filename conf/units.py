"""Units, sizes and counts that more than one package needs. Values in the configuration are plain bytes and seconds."""

from __future__ import annotations

TERA = 1e12
TRILLION = 10**12
GIGA = 1e9
MILLION = 10**6
MILLI = 1e-3
MICRO = 1e-6
MEBIBYTE = 2**20
GIBIBYTE = 2**30
JOULES_PER_KWH = 3.6e6
SECONDS_PER_MINUTE, MINUTES_PER_HOUR, SECONDS_PER_HOUR = 60, 60, 3600

FLOAT32_BYTES = 4
"""The width of what is kept in fp32 whatever the precision: master weights, optimizer states, softmax statistics."""

LEAST_GAIN_SHOWN = 0.0005
"""A smaller share rounds to 0.0 %, which nobody should read as a gain."""


def gain_of(share: float, word: str) -> str:
    """`12.0% faster`; empty where that rounds to nothing or is no gain."""
    return f"{share:.1%} {word}" if share >= LEAST_GAIN_SHOWN else ""


def count_of(number: int, noun: str, verb_of_one: str = "", verb_of_many: str = "") -> str:
    """`1 trial`, `1,000 trials`; with verbs `1 trial was`, `1,000 trials were`."""
    counted = f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
    return f"{counted} {verb_of_one if number == 1 else verb_of_many}".rstrip()
