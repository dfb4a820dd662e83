"""What a file of somebody's run says: facts about its configuration, and steps, each with the line that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class LogLine(NamedTuple):
    """Where something is said. `line` counts from 1; None: the file as a whole, or a word of the command line."""

    file: str
    line: int | None
    text: str


class SaidBy(StrEnum):
    """Who says a fact; of two, the one that comes first in this list is believed."""

    OVERRIDE = "override"  # of the command line of `trisweep diagnose`
    RESOLVED = "resolved"  # printed by the trainer after it had settled everything: dumps, "setting ... to ... since"
    FILE = "file"  # a configuration file that it was given
    FLAG = "flag"  # a flag of a launch script
    PROSE = "prose"  # what somebody wrote around it
    COMPUTED = "computed"  # follows from printed figures; `Fact.at` is one of them, `Fact.note` says how
    ASSUMED = "assumed"  # nobody says it; `Fact.note` says why this value


class Fact(NamedTuple):
    """One value, as text in the notation of its column or setting."""

    value: str
    said_by: SaidBy
    at: LogLine | None = None
    note: str = ""


class LoggedStep(NamedTuple):
    """One line about steps.

    Attributes:
        number: of the last step that the line covers; `covers` of them were averaged.
        seconds: of one optimizer step; NaN where neither the line nor what is known of the run tells it.
        tflops: of one device, as the trainer counts them; `mfu`: a share of 1.
        tokens_per_second: of all devices together.
        memory_bytes: the most that one device had reserved; `memory_share`: the same as a share of the device.
        allocated_bytes: the most that it had allocated.
        batch: sequences of the step, where the line says it (a ramp of the batch).
    """

    number: int
    seconds: float
    at: LogLine
    covers: int = 1
    tflops: float | None = None
    mfu: float | None = None
    tokens_per_second: float | None = None
    memory_bytes: float | None = None
    memory_share: float | None = None
    loss: float | None = None
    batch: int | None = None
    allocated_bytes: float | None = None


class LoggedMemory(NamedTuple):
    """What one rank, or any one where `rank` is None, says of its memory, in bytes."""

    rank: int | None
    allocated: float | None
    reserved: float | None
    at: LogLine


@dataclass
class UserRun:
    """One start of one job: a file with restarts holds several.

    Attributes:
        program: the trainer whose files and lines these are, in the words of `diagnose.readers`, such as `nanotron`;
            None where nothing tells it.
        trainer: a name that `trisweep estimate` takes as `implementation`, whose costs are nearest to the program's;
            None where nothing tells it.
        columns: facts by column of `trisweep estimate` (docs/estimate.md).
        settings: facts by the trainer's own name, without dashes in front and with `_` between words: all that was
            found, read into a column or not. Environment variables keep their capitals.
        overruled: by the same names what somebody else says otherwise, and is believed less.
        steps: in the order of their lines, the copies of several ranks once.
        timers: seconds by the trainer's name of a timer, of the last line that has it.
        marks: the first lines that tell what happened beside the steps, by the kinds of `diagnose.readers.marks`.
    """

    name: str
    program: str | None = None
    trainer: Fact | None = None
    columns: dict[str, Fact] = field(default_factory=dict)
    settings: dict[str, Fact] = field(default_factory=dict)
    overruled: dict[str, list[Fact]] = field(default_factory=dict)
    steps: list[LoggedStep] = field(default_factory=list)
    memory: list[LoggedMemory] = field(default_factory=list)
    timers: dict[str, float] = field(default_factory=dict)
    marks: dict[str, list[LogLine]] = field(default_factory=dict)

    def row(self) -> Mapping[str, str]:
        """The run as a row of `trisweep estimate`: what its facts say, without who says it."""
        return {column: fact.value for column, fact in self.columns.items()}
