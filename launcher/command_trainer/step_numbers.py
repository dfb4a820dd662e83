"""Which step of the training a printed number means: programs begin anew with each epoch, go back to a checkpoint,
print a bar for each validation too, and let every rank print the same.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace

SPEAKER = re.compile(
    r"(?i)(?:\b|_)rank[ :=_]{0,2}\d+\b(?![.%])|^\[(?:default|gpu|cuda|worker|trainer)[ :]?\d+\]"
    r"|^\s*\d+: (?!\s*\d+%)|^\[\d+,\d+\]<"
)
"""A rank's name before its line: torch's or torchrun's, that of `srun --label`, which is no bar's, or mpirun's."""

EPOCH = re.compile(r"(?i)\bepoch(?:\(train\))?\W{0,4}(\d+)|\btrain: +(\d+) +\[")
HEADING = re.compile(r"(?i)^\W*(?:(?:starting|begin\w*|train\w*) )?epoch\b\W{0,4}\d")
EVALUATES = re.compile(
    r"(?i)(?<![a-z])(?:val|valid|validat[a-z]*|eval[a-z]*|test|testing|sanity|predict[a-z]*)"
    r"(?![a-z]|[_ /-]?(?:loss|acc|score|err|ppl|perplexity|metric|f1)|\W{0,3}\d+\.\d)"
)
"""The name of a part of the program, and not of a figure of the last validation."""

TOTAL = re.compile(r"[ \t]*(?:/|of\b)[ \t]*(\d+)\b(?!\.\d)")
GOES_BACK = re.compile(r"(?i)\b(?:restart|resum|restor|roll\w* ?back)\w*\b|\bload\w*\b.*\b(?:checkpoint|ckpt|state)")


@dataclass(frozen=True, slots=True)
class PrintedPlace:
    """What a line says of where the training stands.

    Attributes:
        number: from 1 on where the program counts anew; 0 for a bar that has only begun.
        total: how many steps there are, of the epoch or of the training; None where the line does not say.
        speaker: the rank's name before the line.
        evaluates: the words before the number are those of a validation.
    """

    number: int
    total: int | None
    epoch: int | None
    speaker: str
    evaluates: bool


def place_in(line: str, start: int, end: int, number: int, epoch: int | None, heading: int | None) -> PrintedPlace:
    """What the line says around its step, which stands from start to end.

    Args:
        epoch: of a pattern's group, which comes before the line's own word for it.
        heading: the epoch that a line above told of.
    """
    before, total = line[:start], TOTAL.match(line, end)
    speaker = SPEAKER.search(before)
    return PrintedPlace(
        number=number,
        total=int(total[1]) if total and int(total[1]) > 0 else None,
        epoch=next((each for each in (epoch, epoch_in(before), heading) if each is not None), None),
        speaker=speaker[0] if speaker else "",
        evaluates=EVALUATES.search(before) is not None,
    )


def epoch_in(text: str) -> int | None:
    """The epoch that a text names; None without one."""
    found = EPOCH.search(text)
    return int(found[1] or found[2]) if found else None


@dataclass(frozen=True, slots=True)
class NumberRun:
    """The numbers since they last began anew.

    Attributes:
        offset: the steps before them.
        stride: the most by which a number was beyond the one before.
    """

    offset: int = 0
    epoch: int | None = None
    total: int | None = None
    first: int | None = None
    last: int = 0
    stride: int = 1

    @property
    def length(self) -> int:
        """How many steps it had, as far as is known."""
        return max(self.total or 0, self.last)

    @property
    def is_whole(self) -> bool:
        """True if it may have ended, as far as its total says."""
        return self.total is None or self.last + self.stride > self.total

    def is_over(self, number: int) -> bool:
        """True if a number that is not beyond the last one can be the first of another run."""
        return self.is_whole and (number <= max(self.first or 0, self.stride) or self.last == self.total)

    def with_next(self, place: PrintedPlace) -> NumberRun:
        number, first = place.number, place.number if self.first is None else self.first
        stride = self.stride if self.first is None else max(self.stride, number - self.last)
        epoch = self.epoch if place.epoch is None else place.epoch
        return NumberRun(self.offset, epoch, place.total, min(first, number), number, stride)


START = NumberRun()


class StepNumbers:
    """The numbers of one speaker.

    Attributes:
        step: of its last number.
        num_runs: how often they have begun, anew included.
        repeats: how often a number came again, by number, and was taken for another rank's.
    """

    def __init__(self, num_ranks: int, told_before: int) -> None:
        self.step: int | None = None
        self._num_ranks, self._told_before = num_ranks, told_before
        self._run = START
        self._before: NumberRun | None = None  # before numbers of which it is not sure that they are of the training
        self._starts, self._ends = dict[int, int](), dict[int, int]()  # steps before an epoch, and up to its end
        self._lines = dict[int, str]()
        self._only_evaluates = True
        self.num_runs, self.repeats = 0, Counter[int]()

    def step_of(self, place: PrintedPlace, line: str, *, went_back: bool) -> tuple[int | None, bool]:
        """The step that a line is about, 0 before the first, None where it is of none; and whether what was told from
        it on is void.

        Args:
            went_back: something was said of a checkpoint or a restart since the last step.
        """
        if place.evaluates and not self._only_evaluates:
            return None, False
        is_first = self._run is START or (self._only_evaluates and not place.evaluates)
        self._only_evaluates = place.evaluates
        if is_first:
            is_void, self.num_runs = self._run is not START, 1
            return self._enter(replace(START, offset=self._resumed_at(place)), place, line), is_void
        if (before := self._before) and place.total == before.total != self._run.total:
            self._run, self._before = before, None
            return self._next(before, place, line, went_back)[0], True
        return self._next(self._run, place, line, went_back)

    def begin_here(self) -> int:
        """Count from the numbers under way on, where those before had another total and were of something else, such as
        of files that were loaded; returns how many they were.
        """
        offset, before = self._run.offset, self._before
        if before is None or before.total == self._run.total:
            return 0
        self._run, self._before, self.num_runs = replace(self._run, offset=0), None, 1
        return offset

    def confirm(self) -> None:
        """What was told since the numbers began anew is of the training."""
        self.num_runs += 1
        self._before = None

    @property
    def stride(self) -> int:
        return self._run.stride

    def is_unsure_of(self, step: int) -> bool:
        """True if the step came since the numbers last began anew, and may be one of a validation."""
        return self._before is not None and step > self._before.offset + self._before.length

    def _next(self, run: NumberRun, place: PrintedPlace, line: str, went_back: bool) -> tuple[int | None, bool]:
        back = run.last - place.number
        epochs = (place.epoch or 0) - (run.epoch or 0) if None not in (place.epoch, run.epoch) else None
        is_same = epochs in (None, 0)
        if is_same and not (run.is_whole or went_back) and run.last and place.total not in (None, run.total):
            return None, False  # a bar within the training's, such as that of a validation
        if back < 0 <= (epochs or 0) or (back == 0 and is_same):
            return self._enter(run, place, line), False
        is_of_rank = self._num_ranks > 1 and not went_back and (back <= 1 or self._lines.get(place.number) == line)
        is_over = run.is_over(place.number) and not went_back and not (is_of_rank and run.total is None)
        if (epochs or 0) > 0 or (epochs is None and is_over):
            self._before = self._before or run
            offset = max([self._ends[e] for e in self._ends if e < (place.epoch or 0)], default=run.offset + run.length)
            return self._enter(replace(START, offset=offset, stride=run.stride), place, line), False
        if is_of_rank and is_same:
            self.repeats[place.number] += 1
            return None, False
        offset = run.offset if is_same else self._starts.get(place.epoch or 0, 0)
        return self._enter(replace(run, offset=offset, last=place.number), place, line), True

    def _enter(self, run: NumberRun, place: PrintedPlace, line: str) -> int:
        """Take the line's number as the next of a run."""
        self._run = run.with_next(place)
        if self._run.epoch is not None:
            self._starts.setdefault(self._run.epoch, run.offset)
            self._ends[self._run.epoch] = max(self._ends.get(self._run.epoch, 0), run.offset + self._run.length)
        self._lines[place.number] = line
        self.step = run.offset + place.number
        return self.step

    def _resumed_at(self, place: PrintedPlace) -> int:
        """The steps before an epoch with which a program goes on: as many as an earlier attempt told of at least."""
        if place.epoch is None or place.total is None:
            return 0
        known = (count * place.total for count in (place.epoch, place.epoch - 1))
        return next((steps for steps in known if 0 < steps <= self._told_before), 0)
