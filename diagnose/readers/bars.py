"""Steps that only a progress bar, a dictionary of losses or a summary tells of, as Hugging Face's Trainer prints them.

Source: trainer_callback.py and trainer.py of huggingface/transformers; std.py of tqdm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from diagnose.readers.book import BookedStep, StepBook
from diagnose.readers.said import SaidSettings, number, says
from diagnose.readers.steps import read_number
from diagnose.readers.text import at
from diagnose.runs import SaidBy, UserRun

BAR_WORDS = ("it/s", "s/it")
BAR = re.compile(
    r"(?P<said>[^|]*?)(?:\d+%)?\|[^|]*\| *(?P<number>\d+)/(?P<of>\d+|\?) "
    r"\[(?P<spent>[\d:]+)<[^,\]]*, *(?P<rate>[\d.,]+)(?P<unit>it/s|s/it)"
)
OF_TRAINING = re.compile(r"[\s`'\"]*(?:[Tt]rain(?:ing)?\b.*|Epoch \d+[^:]*:|Steps?:|Loss: [\d.]+:)?\s*$")
NAMED = re.compile(r"[Ee]poch|[Ss]tep|[Ll]oss")
"""What bars of other programs are called; the Trainer's have no name."""
LOSSES = re.compile(r"\{'loss': ['\"]?[-\d.naife+]+")
LOSS = re.compile(r"'loss': ['\"]?([-\d.einfa+]+)")
STEP_OF_LOSS = re.compile(r"'(?:global_step/max_steps|iteration)': '(\d+)/\d+'")
SPEED_OF_LOSS = re.compile(r"'train_speed\((iter/s|s/it)\)': ['\"]?([\d.]+)")
MEMORY_OF_LOSS = re.compile(r"'memory(?:\(GiB\)|/device_mem_reserved\(gib\))': ['\"]?([\d.]+)")
"""What ms-swift, and axolotl, put beside a loss: the speed is the mean since the first step."""
SUMMARY = ("train_runtime", "train_steps_per_second", "train_samples_per_second")


class BarReader:
    """Hears bars and dictionaries of one start; the first bar without a name is taken for the training's."""

    def __init__(self, run: UserRun, book: StepBook) -> None:
        self.run, self.book = run, book
        self._of: int | None = None
        self.is_bare = True
        self._num_losses = 0

    def steps_in(self, text: str) -> list[tuple[int | None, dict[str, float]]]:
        """The steps that a line tells of, without a number where it says more of the last one."""
        bars = BAR.finditer(text) if "|" in text else ()
        bar = next((match for match in bars if self._is_of_training(match)), None)
        found: list[tuple[int | None, dict[str, float]]] = []
        self.is_bare = bar is None or NAMED.search(bar["said"]) is None
        if bar is not None and int(bar["number"]) > 0 and (rate := read_number(bar["rate"], "step_seconds")):
            found.append((int(bar["number"]), {"seconds": rate if bar["unit"] == "s/it" else 1 / rate}))
        if LOSSES.search(text) is not None and (loss := LOSS.search(text)) is not None:
            found.append(self._of_loss(number(loss[1]), text, bool(found)))
        return found

    def _is_of_training(self, bar: re.Match[str]) -> bool:
        settled, of = self.run.settings.get("max_steps"), int(bar["of"].replace("?", "0"))
        if settled is not None and settled.value.isdigit():
            return of == int(settled.value)
        if OF_TRAINING.match(bar["said"]) is None:
            return False
        self._of = self._of or of
        return of == self._of

    def _of_loss(self, loss: float | None, text: str, has_bar: bool) -> tuple[int | None, dict[str, float]]:
        """A loss is of the step that the bar showed last; without a bar, of as many steps as one is printed for."""
        self._num_losses += 1
        told = {} if loss is None else {"loss": loss}
        if (memory := MEMORY_OF_LOSS.search(text)) is not None and (gib := number(memory[1])):
            told["memory"] = gib * 2**30
        if (step := STEP_OF_LOSS.search(text)) is not None:
            return int(step[1]), told | _of_swift(text, int(step[1]))
        if has_bar or self._of is not None or any("seconds" in step.found for step in self.book.steps[-1:]):
            return None, told
        self.book.averages = True
        return self._num_losses * (SaidSettings(self.run).whole("logging_steps") or 1), told


def _of_swift(text: str, step: int) -> dict[str, float]:
    """The seconds since the first step that ms-swift prints with a loss."""
    found, speed = dict[str, float](), SPEED_OF_LOSS.search(text)
    if speed is not None and (value := number(speed[2])):
        found["elapsed"] = step * value if speed[1] == "s/it" else step / value
    return found


def add_summary(run: UserRun, book: StepBook) -> None:
    """Where no step has a time, take the mean of all of them that the Trainer's summary tells."""
    settings = SaidSettings(run)
    if any("seconds" in step.found or step.when for step in book.steps):
        return
    rate = settings.fact("train_steps_per_second")
    steps = settings.whole("global_step", "max_steps")
    value, runtime = number(rate.value) if rate else None, number(settings.text("train_runtime"))
    seconds = runtime / steps if runtime and steps else 1 / value if value else None
    source = settings.fact("train_runtime", "train_steps_per_second")
    if seconds is None or source is None or source.at is None:
        return
    last = steps or (book.steps[-1].number if book.steps else 1)
    book.steps, book.averages = [BookedStep(last, source.at, {"seconds": seconds}, covers=last)], False


def read_trainer_state(run: UserRun, book: StepBook, history: list[Any], source: str, lines: list[str]) -> None:
    """Take down the losses by step, and the summary at the end, of a trainer_state.json."""
    places = _places_of_steps(lines)
    for entry in history:
        if not isinstance(entry, dict) or not isinstance(step := entry.get("step"), int):
            continue
        line = next(places, None)
        if "train_runtime" in entry:
            for name in (*SUMMARY, "total_flos", "train_loss"):
                if name in entry:
                    says(run, name, entry[name], SaidBy.RESOLVED, at(source, line, f"{name}: {entry[name]}"))
        elif "loss" in entry and (loss := number(str(entry["loss"]))) is not None:
            book.averages = True
            book.add(step, {"loss": loss}, at(source, line, f'"step": {step}'), "", "")


def _places_of_steps(lines: list[str]) -> Iterator[int]:
    """The numbers of the lines on which `"step":` stands, in their order."""
    return (index for index, line in enumerate(lines, 1) if '"step":' in line)
