"""`journal.jsonl`: what was done with a sweep since it was planned, one line an event, only ever appended to.

How a trial stands is told by its folder. The journal holds what no folder tells: which points were asked for later and
why, what people ordered, and what earlier attempts took. Any process may append to it while another reads it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Collection, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from conf.errors import UsageError
from conf.types.schema import Frozen
from sweeps.trial import SweepFolder, SweepRecord, Trial
from train_core.process.long_lived import long_lived
from train_core.trial.atomic import append_whole
from train_core.trial.measurement import LIVE, Outcome

Texts = Annotated[tuple[str, ...], Field(strict=False)]


class Event(Frozen):
    time: float = Field(default_factory=time.time)


class Begun(Event):
    """The entry of a `trisweep sweep` command; whoever goes on with the sweep does so with these overrides."""

    event: Literal["begun"] = "begun"
    overrides: Texts
    on_slurm: bool
    config_dirs: Texts = ()


class Asked(Event):
    """The search asked for a trial, which from now on belongs to the sweep."""

    event: Literal["asked"] = "asked"
    trial: Trial


class OfAttempt(Event):
    """An entry about one attempt of a trial, with the fields that identify the attempt.

    Attributes:
        submitted: when it was, as its `Submission` says; 0.0 where it has none. The number of an attempt tells less: it
            comes twice if whoever submitted it was killed before that was written down.
    """

    trial_id: str
    submitted: float


class Submitted(OfAttempt):
    """An attempt was submitted."""

    event: Literal["submitted"] = "submitted"
    attempt: int


class Started(OfAttempt):
    """An attempt was seen to run."""

    event: Literal["started"] = "started"


class Ended(OfAttempt):
    """An attempt ended, or was interrupted together with the sweep, which leaves no outcome.

    Attributes:
        device_seconds: devices that it kept from others, times the seconds that it did.
    """

    event: Literal["ended"] = "ended"
    outcome: Outcome | None
    device_seconds: float


class Pruned(OfAttempt):
    """A running attempt is to end, because it is not worth its further steps."""

    event: Literal["pruned"] = "pruned"
    because: str


class Retried(OfAttempt):
    """A person wants another attempt after this one."""

    event: Literal["retried"] = "retried"


class Cancelled(Event):
    """A person ended a trial, or the whole sweep where `trial_id` is None."""

    event: Literal["cancelled"] = "cancelled"
    trial_id: str | None


class Paused(Event):
    """The entry of a person's order to start nothing new."""

    event: Literal["paused"] = "paused"


class Resumed(Event):
    """New trials are started again."""

    event: Literal["resumed"] = "resumed"


class Finished(Event):
    """The entry of a sweep's end: nothing is left to do, or the sweep stopped itself."""

    event: Literal["finished"] = "finished"
    because: str


ALL_TRIED = "every listed point was tried"
"""Why a sweep has ended that no limit cut short. Of a part of it, the points of that part are meant."""

Entry = Begun | Asked | Submitted | Started | Ended | Pruned | Retried | Cancelled | Paused | Resumed | Finished
BEGIN_BYTES = 128
"""Enough of a journal's first entry to hold its time."""

PARSER: TypeAdapter[Entry] = TypeAdapter(Annotated[Entry, Field(discriminator="event")])


class JournalReplacedError(UsageError):
    """The journal that was read is not the one in its folder any more: what was learnt from it is of another sweep."""


class Journal:
    """The journal as far as it was read. Reading it again takes only what has been appended since.

    Attributes:
        damaged: numbers of the lines, from 1, that cannot be read and are passed over.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged: list[int] = []
        self._offset = 0
        self._num_lines = 0
        self._begin = b""

    def read_new(self) -> list[Entry]:
        """The entries since the last call. A last line that is still being written comes with the next one.

        Raises:
            UsageError: the file is there and cannot be read.
            JournalReplacedError: the file that was read before has been removed, or another one is in its place.
        """
        try:
            with self.path.open("rb") as file:
                self._require_same(file.read(len(self._begin)))
                # What a refused command had written may be gone again.
                self._offset = min(self._offset, file.seek(0, os.SEEK_END))
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except (FileNotFoundError, NotADirectoryError):
            self._require_same(b"")
            return []
        except OSError as error:
            problem = f"{self.path} cannot be read ({error.strerror})"
            remedy = "It says what was asked and started: make it readable, or move it away."
            raise UsageError(problem, remedy) from None
        if not self._offset:
            self._begin = whole.partition(b"\n")[0][:BEGIN_BYTES]
        self._offset += len(whole) + len(newline)
        with long_lived():
            return [entry for line in whole.split(b"\n") if newline and (entry := self._parse(line)) is not None]

    def _require_same(self, begin: bytes) -> None:
        """Compare by the first entry, which has its time: a new file may well get the inode of the removed one."""
        if begin != self._begin:
            problem = f"{self.path.parent} was removed or replaced while this process worked in it"
            remedy = "Give the sweep's command again; jobs that it had started may still run."
            raise JournalReplacedError(problem, remedy)

    def append(self, *entries: Entry) -> None:
        """Append all of the entries, or none. Raises OSError."""
        if not entries:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{entry.model_dump_json()}\n" for entry in entries)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: whole lines are appended all the same
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            append_whole(self.path, ("\n" if _is_torn(descriptor) else "") + text)
        finally:
            os.close(descriptor)
        for own in _NOTED.get():
            own.texts.append(text)

    def _parse(self, line: bytes) -> Entry | None:
        self._num_lines += 1
        try:
            return PARSER.validate_json(line)
        except ValidationError:
            self.damaged.append(self._num_lines)
            return None


_NOTED: ContextVar[tuple[OwnEntries, ...]] = ContextVar("noted", default=())


@dataclass
class OwnEntries:
    """What this process has appended to journals while it was noted, as texts of one or more lines."""

    path: Path
    texts: list[str] = field(default_factory=list)

    def tell_of_jobs(self, since: float) -> bool:
        """True if an attempt was submitted after that time; of earlier ones a command may only have learnt."""
        entries = (PARSER.validate_json(line) for text in self.texts for line in text.splitlines())
        return any(isinstance(entry, Submitted) and entry.submitted > since for entry in entries)

    def take_back(self) -> None:
        """Remove them; what others have appended meanwhile stays. The journal is locked, as for an entry."""
        with contextlib.suppress(FileNotFoundError), self.path.open("r+b") as file:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            whole = file.read()
            for text in reversed(self.texts):
                before, found, after = whole.rpartition(text.encode())
                whole = before + after if found else whole
            file.seek(0)
            file.truncate(file.write(whole))
            if not whole:
                self.path.unlink()


@contextlib.contextmanager
def noting_own_entries(path: Path) -> Iterator[OwnEntries]:
    """Note what this process appends in the block, for whoever may have to take it back."""
    own = OwnEntries(path)
    token = _NOTED.set((*_NOTED.get(), own))
    try:
        yield own
    finally:
        _NOTED.reset(token)


def _is_torn(descriptor: int) -> bool:
    """True if the last line breaks off, because its writer was killed or the machine lost its power."""
    end = os.lseek(descriptor, 0, os.SEEK_END)
    return end > 0 and os.pread(descriptor, 1, end - 1) != b"\n"


@dataclass
class Course:
    """The history of one trial over all its attempts. Each attempt is known by the time of its submission.

    Attributes:
        last_attempt: the highest number that an attempt had; 0 before the first.
        submitted, started, ended: the last attempt that was submitted, was seen to run, and was seen to end.
        retry_after: a person wants another attempt after this one.
        pruned: why an attempt is to end.
        is_cancelled: a person ended the trial for good.
        ended_before_command: its last end was known before the present command was given.
    """

    num_attempts: int = 0
    last_attempt: int = 0
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    device_seconds: float = 0.0
    retry_after: float | None = None
    pruned: dict[float, str] = field(default_factory=dict)
    is_cancelled: bool = False
    ended_before_command: bool = False

    def wants_another(self, submitted: float) -> bool:
        """True if a person asked for one more attempt, and the last one is not it."""
        return self.retry_after is not None and submitted in (self.retry_after, 0.0)


@dataclass
class History:
    """All that the journal has told so far.

    Attributes:
        asked: trials that a search or a person asked for, by id.
        asked_last: those of them that the command that goes on asked for.
        begun: the command that goes on; None before the first one.
        first_begun: when the sweep was begun; None likewise.
        finished: why nothing is left to do; empty while something is.
    """

    asked: dict[str, Trial] = field(default_factory=dict)
    asked_last: dict[str, Trial] = field(default_factory=dict)
    courses: dict[str, Course] = field(default_factory=dict)
    begun: Begun | None = None
    first_begun: float | None = None
    has_submitted: bool = False
    is_paused: bool = False
    is_cancelled: bool = False
    finished: str = ""

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> History:
        history = cls()
        history.add(entries)
        return history

    @classmethod
    def kept_in(cls, folder: SweepFolder) -> History:
        return cls.of(Journal(folder.journal).read_new())

    def add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._add(entry)

    def course_of(self, trial_id: str) -> Course:
        return self.courses.setdefault(trial_id, Course())

    @property
    def device_seconds(self) -> float:
        return sum(course.device_seconds for course in self.courses.values())

    def has_ended(self, outcomes: Collection[Outcome | None]) -> bool:
        """True if nothing of the sweep runs, and nothing will be started unless a person asks for it.

        Args:
            outcomes: of all its trials; None of those that were left out.
        """
        if self.is_cancelled:
            return Outcome.RUNNING not in outcomes
        # A search that has asked for trials may ask for more, until it says that it has ended.
        return not any(outcome in LIVE for outcome in outcomes) and (not self.asked or bool(self.finished))

    def why_cut_short(self, outcomes: Collection[Outcome | None]) -> str:
        """The limit, such as a budget's, that has ended the sweep while trials were left; empty where none has.

        Args:
            outcomes: of all its trials.
        """
        return self.finished if self.finished != ALL_TRIED and Outcome.PENDING in outcomes else ""

    def complete_record(self, record: SweepRecord) -> SweepRecord:
        """The record with the trials that were asked for since it was written."""
        if not self.asked:
            return record
        # A search may ask for what the record has from an earlier command, which has not measured it.
        known = {trial.trial_id: self.asked_last.get(trial.trial_id, trial) for trial in record.trials}
        later = (trial for trial_id, trial in self.asked.items() if trial_id not in known)
        return record.model_copy(update={"trials": (*known.values(), *later)})

    def _add(self, entry: Entry) -> None:
        match entry:
            case Submitted() | Started() | Ended() | Pruned() | Retried() | Cancelled(trial_id=str()):
                self._add_to_course(entry, self.course_of(str(entry.trial_id)))
            case Asked(trial=trial):
                self.asked[trial.trial_id] = self.asked_last[trial.trial_id] = trial
                self.finished = ""
            case Cancelled():
                self.is_cancelled = True
            case Paused() | Resumed():
                self.is_paused = isinstance(entry, Paused)
            case Begun():
                self._begin(entry)
            case Finished(because=because):
                self.finished = because

    def _add_to_course(self, entry: Submitted | Started | Ended | Pruned | Retried | Cancelled, course: Course) -> None:
        match entry:
            case Submitted(submitted=submitted, attempt=attempt):
                course.last_attempt = max(course.last_attempt, attempt)
                course.submitted, course.num_attempts = submitted, course.num_attempts + 1
                self.finished, self.has_submitted = "", True
                if submitted != course.retry_after:
                    course.retry_after = None
            case Started(submitted=submitted):
                course.started = submitted
            case Ended(submitted=submitted, outcome=outcome, device_seconds=device_seconds):
                # An attempt whose end was known has had no other end: the place refused the trial a further one.
                if outcome is Outcome.INFEASIBLE and course.ended == submitted:
                    course.retry_after = None
                course.ended, course.ended_before_command = submitted, False
                course.device_seconds += device_seconds
            case Pruned(submitted=submitted, because=because):
                course.pruned[submitted] = because
            case Retried(submitted=submitted):
                course.retry_after, course.is_cancelled, self.finished = submitted, False, ""
            case Cancelled():
                course.is_cancelled, course.retry_after = True, None

    def _begin(self, entry: Begun) -> None:
        self.begun, self.has_submitted, self.is_cancelled, self.asked_last = entry, False, False, {}
        self.first_begun = self.first_begun or entry.time
        for course in self.courses.values():
            course.ended_before_command = True
