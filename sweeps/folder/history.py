"""The state to which a journal's entries add up: trials that were asked for, orders, what was spent."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from sweeps.folder.journal import (
    Asked,
    Begun,
    Cancelled,
    Ended,
    Entry,
    Finished,
    Journal,
    Paused,
    Pruned,
    Resumed,
    Retried,
    Started,
    Submitted,
)
from sweeps.trial import SweepFolder, SweepRecord, Trial
from train_core.measurement import LIVE, Outcome


@dataclass
class Course:
    """The history of one trial over all its attempts. Each attempt is known by the time of its submission.

    Attributes:
        submitted: the last attempt that was submitted, by the time of its submission, in seconds since 1970.
        started: the last attempt that was seen to run, by the time of its submission likewise.
        ended: the last attempt that was seen to end, by the time of its submission likewise.
        retry_after: a person wants another attempt after this one.
        pruned: why an attempt is to end.
        is_cancelled: a person ended the trial for good.
        ended_before_command: its last end was known before the present command was given.
    """

    num_attempts: int = 0
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
        begun: the command that goes on; None where the sweep was begun before there were journals.
        first_begun: when the sweep was begun; None likewise.
        is_cancelled: as a whole.
        finished: why nothing is left to do; empty while something is.
    """

    asked: dict[str, Trial] = field(default_factory=dict)
    asked_last: dict[str, Trial] = field(default_factory=dict)
    courses: dict[str, Course] = field(default_factory=dict)
    begun: Begun | None = None
    first_begun: float | None = None
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
        """Read the history from the journal in a sweep's folder."""
        return cls.of(Journal(folder.journal).read_new())

    def add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._add(entry)

    def course_of(self, trial_id: str) -> Course:
        return self.courses.setdefault(trial_id, Course())

    @property
    def device_seconds(self) -> float:
        """The device-seconds of all attempts that ended."""
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
            case Submitted(submitted=submitted):
                course.submitted, course.num_attempts, self.finished = submitted, course.num_attempts + 1, ""
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
        self.begun, self.is_cancelled, self.asked_last = entry, False, {}
        self.first_begun = self.first_begun or entry.time
        for course in self.courses.values():
            course.ended_before_command = True
