"""Reads every number that a program prints under a name: lines of JSON, `name: value` and `name=value`.

A step begins with a line that has the number of a step, an iteration or an epoch; a program that prints none makes one
whenever it prints a name again. What counts for a trial is the last value of each name.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence

from conf.nearest import listed, most_like
from conf.plan.experiment import Experiment
from conf.types.sweep_spec import own_figure
from launcher.command_trainer.log_parser import StepParser, named_numbers
from train_core.trial.measurement import LOSS, StepMetrics

STEPS = ("step", "global_step", "iteration", "iter", "epoch")
"""Names of the number of a step, the first that a line has."""
EPOCH = "epoch"
PARTS = "train|training|val|valid|validation|eval|evaluation|test"
"""Words before a name that belong to it: `val loss: 2.1` is `val_loss`."""
NUMBER = r"(?P<value>[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|inf(?:inity)?))"
NO_PART = r"(?![\w.]*\d|,\d{3}(?!\d)|[kmgtb]\b|:\d|-\d)"
"""What follows a number is no part of it, as of a version, a time of day, a date, `4,800` or `12k`."""
PAIR = re.compile(
    rf"(?<![\w./-])[\"']?(?P<name>(?:(?:{PARTS}) )?[a-z_][\w./-]*)[\"']?\s*[:=]\s*{NUMBER}{NO_PART}", re.IGNORECASE
)
MOST_NAMES = 300
"""Further names, as of every weight of a model, are not kept."""
MOST_NAMED = 12


def parser_of(experiment: Experiment, told_before: int = 0, sought: Sequence[str] = ()) -> StepParser:
    """The parser of a program's log: by names or by patterns, as its trainer says; see `StepParser`."""
    kind = FigureParser if experiment.trainer.log.figures else StepParser
    return kind(experiment, told_before, sought)


def figures_in(book: StepParser) -> dict[str, float]:
    """The last value of each name; nothing of a log that is read by patterns."""
    return dict(book.figures) if isinstance(book, FigureParser) else {}


class FigureParser(StepParser):
    """The steps, the error and the figures that a log has told of so far.

    Attributes:
        figures: the last value of each name.
    """

    def __init__(self, experiment: Experiment, told_before: int = 0, sought: Sequence[str] = ()) -> None:
        super().__init__(experiment, told_before, sought)
        self.figures = dict[str, float]()
        self.names = [name for each in sought if (name := LOSS if each == LOSS else own_figure(each)) is not None]
        self._spelled = {name.lower(): name for name in (*STEPS, LOSS, *self.names)}
        known = "|".join(map(re.escape, self._spelled))
        self._spaced = re.compile(rf"(?<![\w./-])(?P<name>{known})[ #\[(]+{NUMBER}{NO_PART}", re.IGNORECASE)
        self._shift, self._has_steps = 0, False
        self._of_epoch, self._last_epoch = 0.0, 0.0

    def hear(self, line: str, source: int = 0) -> Iterator[StepMetrics]:
        """The step that this line ends, if it does."""
        self._look_for_end(line)
        if not (printed := self._printed(line)):
            return
        step = self._step_of(printed)
        is_next = step is None and not self._has_steps and not self._found.keys().isdisjoint(printed)
        if is_next or (step is not None and step != self._current):
            yield from self.close()
            self._current, self._found = step or (self._current or 0) + 1, {}
        self._current = self._current or (None if self._has_steps else 1)
        self._found |= printed
        self.figures |= printed

    def close(self) -> Iterator[StepMetrics]:
        """The step that is under way, if it has a figure; nothing more will come."""
        number, found = self._current, self._found
        if number is None or not found:
            return
        self._forget_from(number)
        seconds = max(time.monotonic() - self._begun, 1e-6) / (len(self.steps) + 1)
        told = self._metrics(number, seconds)
        self.steps.append(told.model_copy(update={"num_steps": number, "warmup": False, "figures": dict(found)}))
        self.untimed.add(number)
        self._found = {}
        yield self.steps[-1]

    @property
    def lack(self) -> str:
        """Which of the figures that are sought the log does not have; empty where it has all."""
        missing = next((name for name in self.names if name not in self.figures), None)
        if missing is None:
            return ""
        names = sorted(self.figures.keys() - {*STEPS})
        if not names:
            return (
                f"it printed no number under a name, and {missing} is sought: print `{missing}: VALUE` or a JSON line"
            )
        likely = most_like(missing, names) or names[0]
        return (
            f"it printed no {missing}, which is sought, but {listed(names, MOST_NAMED)}: give --objective {likely}, or"
            f" print `{missing}: VALUE`"
        )

    def _printed(self, line: str) -> dict[str, float]:
        """The numbers of a line by their names."""
        if line.lstrip().startswith("{") and (content := _json_in(line)):
            pairs: Iterator[tuple[str, float]] = named_numbers(content)
        else:
            found = (*PAIR.finditer(line), *self._spaced.finditer(line))
            pairs = ((match["name"].replace(" ", "_"), float(match["value"])) for match in found)
        printed = {self._spelled.get(name.lower(), name): value for name, value in pairs}
        for _, pattern in self.patterns.values():
            if (match := pattern.search(line)) is not None:
                printed |= dict(named_numbers(match.groupdict()))
        has_room = len(self.figures) < MOST_NAMES
        return {
            name: value
            for name, value in printed.items()
            if has_room or name in self.figures or name.lower() in self._spelled
        }

    def _step_of(self, printed: dict[str, float]) -> int | None:
        """The number of the step that a line is about, from 1 on; None where it has none. Takes it out of the line."""
        numbers = {name: printed.pop(name) for name in STEPS if name in printed}
        self._of_epoch = numbers.get(EPOCH, self._of_epoch)
        name = next((name for name in numbers if name != EPOCH or not self._has_steps), None)
        if name is None or not math.isfinite(numbers[name]):
            return None
        if name != EPOCH and not self._has_steps:  # what was told by epochs is told by steps from now on
            self._has_steps, self._current, self._found = True, None, {}
            self._forget_from(1)
        number = int(numbers[name]) + self._shift
        if self._current is None and number < 1:
            self._shift = 1 - number  # it counts from 0
            number = 1
        elif name != EPOCH and number <= (self._current or 0) and self._of_epoch > self._last_epoch:
            before = self._current or 0  # numbers that begin anew with an epoch go on counting
            self._shift += before + 1 - number
            number = before + 1
        self._last_epoch = self._of_epoch
        return max(number, 1)


def _json_in(line: str) -> Mapping[str, object]:
    try:
        content = json.loads(line)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
