"""Reads steps out of the lines of a program's log, by the patterns of its trainer, and figures of one that does not
train, such as the scores of an evaluation, from its lines or from a file.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from conf.plan.experiment import Experiment
from conf.types.sweep_spec import is_of_time
from conf.types.trainer_spec import TIMES, MetricsSpec
from costs import model_flops
from launcher.command_trainer.performance import devices_in_use
from launcher.command_trainer.printed_numbers import UnknownNotation, number_at
from launcher.command_trainer.step_numbers import GOES_BACK, HEADING, SPEAKER, StepNumbers, epoch_in, place_in
from train_core.trial.measurement import StepMetrics

BYTES = {"memory_bytes": 1.0, "memory_mib": 2.0**20, "memory_gib": 2.0**30}
PLAUSIBLE: Mapping[str, tuple[float, float]] = {
    "step": (-1e9, 1e9),
    "step_seconds": (1e-7, 1e7),
    "step_milliseconds": (1e-4, 1e10),
    "steps_per_second": (1e-7, 1e7),
    "tokens_per_second": (1e-9, 1e15),
    "tokens_per_second_per_device": (1e-9, 1e15),
    "samples_per_second": (1e-9, 1e15),
    "tflops": (0.0, 1e6),
    "memory_bytes": (0.0, 2.0**60),
    "memory_mib": (0.0, 2.0**40),
    "memory_gib": (0.0, 2.0**30),
}
"""A figure outside is none: what a program prints beside its words must not spoil reports. A loss may be anything."""
OPENING = re.compile(r"(?:\\b)?([A-Za-z_ ]+?)(?=[A-Za-z_ ][?*{]|[^A-Za-z_ ?*{]|$)")
NOT_A_CHOICE = re.compile(r"\\.|\[\^?\]?[^\]]*\]")
BAR = re.compile(r"\d+%\||(?:it|batch|step)/s|s/(?:it|batch|step)\b|\d/\d+ *\[[=>.#]+\]|\u2501")
KEPT_OF_ANY_LINE = frozenset({"held_out_loss", *BYTES})


class StepParser:
    """The steps, the error and the memory that a log has told of so far.

    A step is told once its time and, where patterns know them, its loss and its held-out loss are known, at the latest
    when the next one begins. What several ranks print of one step counts once; numbers that begin anew go on counting;
    those to which a program goes back take the place of what was told.

    Attributes:
        tflops: of single steps, as the program printed them.
        untimed: the steps without a time, of a log of which none is sought; theirs are by our clock.
        unread: by quantity the first number that cannot be read.
        last_step: the last one that was told, also beyond the plan's last.
        beyond: the highest number that was printed beyond the plan's last, in one of `num_beyond` lines; `further`: of
            those that go on from there.
        memory_bytes: the most that was printed; None while nothing was.
    """

    def __init__(self, experiment: Experiment, told_before: int = 0, sought: Sequence[str] = ()) -> None:
        """Begin to read a log.

        Args:
            told_before: the last step of which earlier attempts have told.
            sought: the sweep's objectives; empty where nobody knows them, so that steps have to be timed.
        """
        log = experiment.trainer.log
        self.num_ranks = experiment.parallel.world_size
        self._new_numbers = partial(StepNumbers, self.num_ranks, told_before)
        self.experiment, self.first_step = experiment, log.first_step
        self.patterns = {name: (opening_of(text), re.compile(text)) for name, text in log.patterns.items()}
        self.errors = [re.compile(pattern) for pattern in log.errors]
        self.done_pattern = re.compile(log.done) if log.done is not None else None
        # An evaluation follows its step, in a line of its own.
        self.wanted = {"loss", "held_out_loss"} & log.quantities
        self.num_devices = devices_in_use(experiment)
        self.steps: list[StepMetrics] = []
        self.matched = set[str]()
        self.needs_time = not sought or any(map(is_of_time, sought))
        self.seeks_loss = "loss" in sought
        self.needs_loss = not sought or "loss" in sought
        self.untimed, self._begun = set[int](), time.monotonic()
        self.tflops = dict[int, float]()
        self.memory_bytes: int | None = None
        self.is_done, self.error = False, ""
        self.log, self.unread = log, dict[str, UnknownNotation]()
        self.last_step, self.beyond, self.num_beyond, self.further = 0, 0, 0, 0
        self._numbers = dict[tuple[int, str], StepNumbers]()
        self._speaker: StepNumbers | None = None
        self._told = set[int]()
        self._epoch: int | None = None
        self._went_back, self._is_void = False, False
        self._current: int | None = None
        self._begins_at: int | None = None
        self._found = dict[str, float]()

    def hear(self, line: str, source: int = 0) -> Iterator[StepMetrics]:
        """The steps that became known by this line, which stands in the log with the number of its source."""
        self._look_for_end(line)
        quantities, spot = self._quantities(line)
        if (step := quantities.pop("step", None)) is not None:
            is_new = yield from self._turn_to(int(step), quantities.pop("epoch", None), line, spot, source)
            if not is_new:
                quantities = {name: value for name, value in quantities.items() if name in KEPT_OF_ANY_LINE}
        else:
            self._went_back |= GOES_BACK.search(line) is not None
            if self._is_late(line, source):
                quantities = {}
            if "epoch" in quantities or HEADING.search(line):
                self._epoch = int(quantities.pop("epoch", epoch_in(line) or 0))
        is_bar = BAR.search(line) is not None
        # The first rank's word for a step stays; of a bar the last one: it shows a new number with old figures first.
        self._found = self._found | quantities if is_bar else quantities | self._found
        self._begin_with_losses()
        self._note(quantities)
        if self._seconds() is not None and self.wanted <= self._found.keys() and not is_bar:
            yield from self.close()

    def _look_for_end(self, line: str) -> None:
        if self.done_pattern is not None and self.done_pattern.search(line):
            self.is_done = True
        if not self.error and any(pattern.search(line) for pattern in self.errors):
            self.error = line.strip()

    def _turn_to(
        self, printed: int, epoch: float | None, line: str, spot: tuple[int, int], source: int
    ) -> Generator[StepMetrics, None, bool]:
        """Go to the step of a line; False where the line is of no step, or of what another rank has told."""
        number = self._number_of(printed)
        if number > (plan := self.experiment.training.num_steps):
            self.beyond, self.num_beyond = max(self.beyond, number), self.num_beyond + 1
            if number - max(self.further, plan) <= max((each.stride for each in self._numbers.values()), default=1):
                self.further = max(self.further, number)
            return False
        place = place_in(line, *spot, number, None if epoch is None else int(epoch), self._epoch)
        numbers = self._numbers.setdefault((source, place.speaker), self._new_numbers())
        step, is_void = numbers.step_of(place, line, went_back=self._went_back)
        self._went_back = False
        if step is None or place.number < 1:  # a bar at 0 stands before its first step
            return False
        if step == self._current and not is_void:
            return True
        is_void &= numbers is next(iter(self._numbers.values()))
        if step in self._told and not (is_void or self._is_void):
            return False
        yield from self.close()
        self._current, self._speaker, self._found, self._is_void = step, numbers, {}, is_void or self._is_void
        return True

    def _is_late(self, line: str, source: int) -> bool:
        """True of a rank's figures in a line without a number, for a step that another rank has told of."""
        if self._current is None or not self.steps or math.isnan(self.steps[-1].loss):
            return False
        speaker = SPEAKER.search(line)
        numbers = self._numbers.get((source, speaker[0] if speaker else ""))
        return numbers is not None and numbers.step != self._current

    def _forget_from(self, step: int) -> None:
        """Drop what was told of a step and of those after it, which are made again."""
        self.steps = [each for each in self.steps if each.step < step]
        self._told = {each.step for each in self.steps}
        self.tflops = {number: tflops for number, tflops in self.tflops.items() if number <= step}
        self._is_void, self.last_step = False, len(self.steps)

    def _number_of(self, printed: int) -> int:
        """The number, from 1 on: a program that goes on from a checkpoint begins beyond the plan's last step."""
        last = self.experiment.training.num_steps
        number = printed - self.first_step + 1
        if number <= last:
            self._begins_at = 1  # whatever was said of a step far beyond was none
        elif self._begins_at is None:
            self._begins_at = number
        return number - (self._begins_at or 1) + 1

    def close(self) -> Iterator[StepMetrics]:
        """The step that is under way, if enough of it is known; nothing more will come."""
        number, is_timed = self._current, (seconds := self._seconds()) is not None
        if not (is_timed or self.needs_time) and (not self.needs_loss or "loss" in self._found):
            seconds = max(time.monotonic() - self._begun, 1e-6) / (len(self.steps) + 1)
        if number is None or seconds is None:
            return
        if self._is_void:  # only now, as a line that names an earlier step may tell nothing of it
            self._forget_from(number)
        # Several ranks may print the same step, which counts once.
        if number in self._told or self._is_of_a_validation(number):
            return
        self.last_step = max(self.last_step, number)
        if number > self.experiment.training.num_steps:
            return
        self.steps.append(self._metrics(number, seconds))
        self._told.add(number)
        if not is_timed:
            self.untimed.add(number)
        yield self.steps[-1]

    def _begin_with_losses(self) -> None:
        """Where the first loss comes after numbers of something else, the steps begin with it."""
        is_first = "loss" in self._found and all(math.isnan(step.loss) for step in self.steps)
        if is_first and self._speaker and self._current and (others := self._speaker.begin_here()):
            self._forget_from(1)
            self._current -= others

    def _is_of_a_validation(self, number: int) -> bool:
        """True of numbers that begin anew, as those of an epoch do, and lack the loss that the steps before had."""
        speaker, lacks_loss = self._speaker, "loss" in self.wanted - self._found.keys()
        if speaker is None or not speaker.is_unsure_of(number):
            return speaker is None
        if lacks_loss and self.steps and not math.isnan(self.steps[-1].loss):
            return True
        speaker.confirm()
        return False

    @property
    def num_runs(self) -> int:
        """How often numbers began, anew included."""
        return max((numbers.num_runs for numbers in self._numbers.values()), default=0)

    @property
    def repeats(self) -> Counter[int]:
        """How often which number came again, where it was taken for another rank's."""
        return sum((numbers.repeats for numbers in self._numbers.values()), Counter())

    def _quantities(self, line: str) -> tuple[dict[str, float], tuple[int, int]]:
        """What a line says; and where in it the step stands."""
        quantities, spot = dict[str, float](), (0, 0)
        for name, (opening, pattern) in self.patterns.items():
            # To look for a text is ten times as fast, and most lines of a talkative program tell nothing.
            match = pattern.search(line) if opening in line else None
            if match is None:
                continue
            self.matched.add(name)
            spot = match.span("step") if "step" in pattern.groupindex else spot
            quantities |= dict(self._numbers_of(match))
        bounds = ((name, value, PLAUSIBLE.get(name)) for name, value in quantities.items())
        return {name: value for name, value, span in bounds if span is None or span[0] <= value <= span[1]}, spot

    def _numbers_of(self, match: re.Match[str]) -> Iterator[tuple[str, float]]:
        """What the groups of a pattern have found; what cannot be read is kept to be said."""
        starts = [match.start(quantity) for quantity in match.re.groupindex]
        for quantity in match.re.groupindex:
            span = match.span(quantity)
            limit = min((start for start in starts if start > span[0]), default=len(match.string))
            try:
                value = number_at(match.string, span, limit, quantity, self.log.decimal) if match[quantity] else None
            except UnknownNotation as unknown:
                if self._numbers:  # what is printed before the first step is no figure of one
                    self.unread.setdefault(quantity, unknown)
                continue
            if value is not None:
                yield quantity, value

    def _note(self, quantities: dict[str, float]) -> None:
        """Keep what says something about the whole training, or is not of `StepMetrics`."""
        for quantity, unit in BYTES.items():
            if quantity in quantities:
                self.memory_bytes = max(self.memory_bytes or 0, round(quantities[quantity] * unit))
        if "tflops" in quantities and self._current is not None:
            self.tflops.setdefault(self._current, quantities["tflops"])

    def _seconds(self) -> float | None:
        """Return how long the step took, by the most direct quantity that was printed; None without any."""
        tokens, quantities = self.experiment.batch.global_batch_size * self.experiment.model.seq_length, self._found
        of_rate: dict[str, float] = {
            "steps_per_second": 1,
            "tokens_per_second": tokens,
            "tokens_per_second_per_device": tokens / self.experiment.parallel.world_size,
            "samples_per_second": self.experiment.batch.global_batch_size,
        }
        for quantity in TIMES:
            value = quantities.get(quantity, math.nan)
            if value > 0:
                if quantity in of_rate:
                    return of_rate[quantity] / value
                return value / 1000 if quantity == "step_milliseconds" else value
        return None

    def _metrics(self, number: int, seconds: float) -> StepMetrics:
        plan, batch, model = self.experiment.training, self.experiment.batch, self.experiment.model
        return StepMetrics(
            step=number,
            num_steps=plan.num_steps,
            loss=self._found.get("loss", math.nan),
            gradient_norm=self._found.get("gradient_norm", math.nan),
            learning_rate=self._found.get("learning_rate", math.nan),
            step_seconds=seconds,
            tokens_per_second=batch.global_batch_size * model.seq_length / seconds,
            model_flops_per_second_per_device=model_flops(model, batch.global_batch_size) / seconds / self.num_devices,
            warmup=number <= plan.num_warmup_steps,
            time=time.time(),
            held_out_loss=self._found.get("held_out_loss"),
        )


def opening_of(pattern: str) -> str:
    """The letters with which all that a pattern matches begins, as far as they are plain to see; else none."""
    opening = OPENING.match(pattern)
    return opening[1] if opening and "|" not in NOT_A_CHOICE.sub("", pattern) else ""


class NoMetrics(Exception):
    """The program ended well, and the figures that it was to leave are not there."""


class FoundMetrics:
    """Collects the figures that a stage is to have, from the lines of a program and from its file."""

    def __init__(self, spec: MetricsSpec | None) -> None:
        self._spec = spec
        self._found: dict[str, float] = {}
        self._pattern = re.compile(spec.line) if spec and spec.line is not None else None

    def hear(self, line: str) -> None:
        """Take a line of the program's log; a later one says the last word."""
        match = self._pattern.search(line) if self._pattern else None
        if match:
            self._found |= _finite(match.groupdict())

    def in_folder(self, folder: Path) -> dict[str, float]:
        """All of the figures, once the program has ended.

        Raises:
            NoMetrics: one sentence about what is missing.
        """
        if self._spec is None:
            return {}
        found = self._found if self._spec.file is None else _in_file(folder / self._spec.file)
        if not found:
            raise NoMetrics(f"no line of its log has a number where metrics.line = {self._spec.line!r} looks for it")
        return found


def _in_file(path: Path) -> dict[str, float]:
    where = f"metrics.file = {path.name!r}"
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise NoMetrics(f"it left no file of figures in its folder ({where}: {error.strerror})") from None
    except ValueError as error:
        raise NoMetrics(f"its file of figures is not JSON ({where}: {error})") from None
    found = _finite(content) if isinstance(content, dict) else {}
    if not found:
        raise NoMetrics(f"its file of figures holds no number under a name ({where})")
    return found


def _finite(content: Mapping[str, Any]) -> dict[str, float]:
    return {name: number for name, number in named_numbers(content) if math.isfinite(number)}


def named_numbers(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a mapping, each with its name, `outer.inner` in one inside; words and lists are left out."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from named_numbers(value, f"{prefix}{name}.")
        elif (number := _number(value)) is not None:
            yield f"{prefix}{name}", number


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
