"""The steps of one start of a run: copies of several ranks once, and in bounded memory however long the log is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from statistics import median

from diagnose.readers.said import Columns
from diagnose.runs import LoggedStep, LogLine, UserRun

MOST_STEPS = 100_000
TOKENS_WITHIN = 0.1
MOST_SECONDS, MOST_OF_MILLISECONDS = 100.0, 0.05
REMEMBERED = 64
"""Numbers of steps of which a copy by another rank may still come."""
LEAST_STEPS, ALIKE = 3, 0.02
"""A start of so many steps, and how far figures of a copy may be from those of the step."""
OF_A_DEVICE = ("memory", "memory_share", "allocated")
CLOCK = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")


@dataclass(slots=True)
class BookedStep:
    """A step as its line says it, before rates are read as times."""

    number: int
    at: LogLine
    found: dict[str, float]
    when: float | None = None
    covers: int = 1


@dataclass
class StepBook:
    """All steps of one start.

    Attributes:
        speaker: who told of the first step; empty for lines without a prefix.
        averages: true where a line's time is the mean of the steps since the one before.
        gap: steps from one line to the next.
    """

    steps: list[BookedStep] = field(default_factory=list)
    averages: bool = False
    speaker: str | None = None
    gap: int = 1
    _known: dict[int, BookedStep] = field(default_factory=dict)

    def has(self, number: int) -> bool:
        """True if a step was told of lately."""
        return number in self._known

    def is_restart(self, number: int, found: Mapping[str, float], speaker: str) -> bool:
        """True if a number can only be that of another start.

        It goes back farther than ranks are behind each other, and the same rank says it with other figures; or, where
        no rank is named, with another loss: the copies of a step have one.
        """
        known, least = self._known.get(number), 2 if self.averages else LEAST_STEPS
        if not speaker and known and number == self.steps[0].number and len(self.steps) >= least:
            return any(abs(value / found[name] - 1) > ALIKE for name, value in known.found.items() if found.get(name))
        if not self.steps or number >= self.steps[-1].number - self.gap:
            return False
        if known is None:
            return number < min(self._known) or speaker == self.speaker
        if speaker:
            return speaker == self.speaker and any(known.found.get(name) != value for name, value in found.items())
        return number < self.steps[-1].number - self.gap and known.found.get("loss") != found.get("loss")

    def add(self, number: int, found: dict[str, float], at: LogLine, speaker: str, text: str) -> None:
        """Take a step down; of copies by other ranks the figures that the first one lacks."""
        if (known := self._known.get(number)) is not None:
            most = {name: max(known.found.get(name, 0.0), found[name]) for name in OF_A_DEVICE if name in found}
            known.found = found | known.found | most
            return
        if self.steps and number < self.steps[-1].number:
            return  # a late word of another rank
        if self.speaker is None:
            self.speaker = speaker
        if self.steps:
            self.gap = max(1, number - self.steps[-1].number)
        when = found.pop("elapsed", None) or (_clock(text) if "seconds" not in found else None)
        step = BookedStep(number, at, found, when)
        if self.averages and self.steps:
            step.covers = self.gap
        self.steps.append(step)
        self._known[number] = step
        if len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]
        if len(self.steps) > MOST_STEPS:
            self._halve()

    def add_to_last(self, found: dict[str, float]) -> None:
        """Take down what lines behind that of a step say of it."""
        if self.steps:
            self.steps[-1].found = found | self.steps[-1].found

    def settle_units(self) -> None:
        """Take times without a unit for seconds, or for milliseconds where the clocks of lines say so.

        Times that grow from line to line count from the start. What is too long for a step's seconds stays unknown.
        """
        for name in ("since", "told_seconds", "unitless"):
            told = [(step, step.found[name]) for step in self.steps if name in step.found]
            values = [value for _, value in told]
            grows = len(told) >= LEAST_STEPS and sorted(set(values)) == values
            grows &= name == "since" or (len(told) > 0 and values[-1] > 2 * values[0])
            for step, value in told:
                if grows or name != "unitless":
                    del step.found[name]
                if grows:
                    step.when, self.averages = value, True
                elif name == "told_seconds":
                    step.found.setdefault("seconds", value)
        ratios = [
            (step.when - before.when) / (step.number - before.number) / step.found["unitless"]
            for before, step in pairwise(self.steps)
            if step.when and before.when and step.when > before.when and step.found.get("unitless")
        ]
        scale = (1e-3 if median(ratios) < MOST_OF_MILLISECONDS else 1.0) if ratios else None
        for step in self.steps:
            value = step.found.pop("unitless", 0.0)
            if value and (scale or value < MOST_SECONDS):
                step.found.setdefault("seconds", value * (scale or 1.0))

    def _halve(self) -> None:
        """Make one of every two steps, so that a long log stays in memory: times are averaged, as a trainer's are."""
        pairs = list(zip(self.steps[::2], self.steps[1::2], strict=False))
        odd = self.steps[len(pairs) * 2 :]
        self.steps = [_joined(*pair) for pair in pairs] + odd


def _joined(one: BookedStep, two: BookedStep) -> BookedStep:
    covers = one.covers + two.covers
    found = {
        name: (one.found[name] * one.covers + value * two.covers) / covers
        for name, value in two.found.items()
        if name in one.found
    }
    return BookedStep(two.number, two.at, found, two.when, covers)


def _clock(text: str) -> float | None:
    match = CLOCK.search(text)
    if match is None:
        return None
    *parts, fraction = match.groups()
    try:
        when = datetime(*map(int, parts))  # type: ignore[arg-type]
    except ValueError:
        return None
    return when.timestamp() + float(f"0.{fraction or 0}")


def settle_steps(run: UserRun, book: StepBook) -> None:
    """Put the steps into a run, once its configuration is known: rates of one device become those of all, and times."""
    if book.averages and len(book.steps) > 1:
        first = book.steps[0]
        first.covers = min(max(book.steps[1].covers, 1), max(first.number, 1))
    columns = Columns(run)
    devices, batch, seq = columns.count("num_gpus"), columns.count("global_batch"), columns.count("seq")
    before: BookedStep | None = None
    for step in book.steps:
        run.steps.append(_logged(step, before, devices, batch, seq))
        before = step


def _tokens(
    found: Mapping[str, float], seconds: float | None, devices: int | None, batch: float | None, seq: int | None
) -> float | None:
    """The tokens a second of all devices; a rate that may be one device's is told by the batch and the time."""
    if "tokens_per_device" in found:
        return found.get("tokens") or (found["tokens_per_device"] * devices if devices else None)
    rate = found.get("tokens", found.get("tokens_of_some"))
    if rate and seconds and batch and seq:
        share = rate * seconds / (batch * seq)
        if devices and abs(share * devices - 1) < TOKENS_WITHIN:
            return rate * devices
        return rate if "tokens" in found or abs(share - 1) < TOKENS_WITHIN else None
    return found.get("tokens")


def _logged(
    step: BookedStep, before: BookedStep | None, devices: int | None, batch: int | None, seq: int | None
) -> LoggedStep:
    found = step.found
    sequences = found.get("batch") or batch
    tokens = _tokens(found, found.get("seconds"), devices, sequences, seq)
    if tokens is None and "samples" in found and seq:
        tokens = found["samples"] * seq
    seconds = found.get("seconds", float("nan"))
    if "seconds" not in found:
        if found.get("batches"):
            seconds = 1 / found["batches"]
        elif tokens and sequences and seq:
            seconds = sequences * seq / tokens
        elif "samples" in found and sequences and found["samples"] > 0:
            seconds = sequences / found["samples"]
        elif before is not None and step.when and before.when and step.number > before.number:
            seconds = (step.when - before.when) / (step.number - before.number)
    return LoggedStep(
        number=step.number,
        seconds=seconds if seconds > 0 else float("nan"),
        at=step.at,
        covers=step.covers,
        tflops=found.get("tflops"),
        mfu=found.get("mfu"),
        tokens_per_second=tokens,
        memory_bytes=found.get("memory"),
        memory_share=found.get("memory_share"),
        loss=found.get("loss"),
        batch=int(found["batch"]) if "batch" in found else None,
        allocated_bytes=found.get("allocated"),
    )
