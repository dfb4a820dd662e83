"""One Slurm allocation as a workplace: trials are steps inside it, each on nodes, cores and devices of its own.

Where the allocation was submitted for the sweep, its steps end with the controller. In one that a person took with
salloc they may outlive it, and the next controller adopts them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from conf.errors import UsageError
from conf.units import SECONDS_PER_MINUTE
from launcher.allocation.nodes import (
    SlurmAllocation,
    own_allocation,
    running_steps,
    step_end,
    why_not_created,
)
from launcher.allocation.packing import Expectation, Room, StepPlacement, WaitingTrial, choose_steps
from launcher.allocation.step import RunningStep, StepExecutor, end_all, ended_steps
from launcher.control.conductor import CANCELLED
from launcher.control.workplace import Workplace
from launcher.job_payload import FolderWork
from launcher.slurm.executor import SlurmJob
from launcher.slurm.job_records import charged_times
from launcher.slurm.job_status import cancel_jobs
from launcher.slurm.query import SlurmJobState, SlurmSilent
from launcher.slurm.reconcile import reconcile
from launcher.slurm.verdict import allocation_end
from sweeps.folder.journal import History
from sweeps.folder.submission import Submission, shape_of
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import Trial
from train_core.job.failures import without_numbers
from train_core.trial.measurement import Outcome

ASK_SECONDS = 2.0
"""Slurm is asked no more often how the allocation stands."""

PAUSE_SECONDS = 10.0
"""So long nothing is started after Slurm has not made a step; it may have been started again just now."""

MOST_REFUSALS = 3
"""An allocation in which Slurm makes no step so many times, one after another, is given up."""

NEW_SECONDS = 60.0
"""An allocation that has run for less is a new one."""

RUNNING = SlurmJobState("RUNNING")
AT_THE_END = "the allocation in which it ran came to its time limit"


@dataclass(frozen=True)
class AllocationTimes:
    """How long an allocation waits for others, and what it leaves itself at its end.

    Attributes:
        closing_seconds: so long before its time limit it ends what still runs in it, and says so.
        step_seconds: for so long Slurm may take to make a step for which there is room.
        lock_seconds: for so long another command may work on the sweep; the wait in the queue is not lost meanwhile.
    """

    closing_seconds: float = 60.0
    step_seconds: int = 60
    lock_seconds: float = 600.0


ORDINARY_TIMES = AllocationTimes()


@dataclass
class AllocationRoom(Workplace):
    """Runs trials as steps of the allocation that this process is in.

    Attributes:
        say: takes a line for whoever follows the sweep; it goes to the job's log where this process is a job.
    """

    executor: StepExecutor
    job: SlurmJob
    times: AllocationTimes = ORDINARY_TIMES
    ask: Callable[[], SlurmAllocation] = own_allocation
    # At once, for the log of a job that is killed must end with its last line.
    say: Callable[[str], None] = field(default=partial(print, flush=True))
    running: dict[str, RunningStep] = field(default_factory=dict)
    num_ended: int = 0
    charged_times = staticmethod(charged_times)  # by the accounting

    def __post_init__(self) -> None:
        self._slots = self.executor.slots
        self._room = Room(dict(self._slots))
        self._draining = self.allocation.draining
        self._is_stuck = False  # nothing runs, and none of what waits can be started here any more
        self._silent: dict[str, RunningStep] = {}  # ended, and not yet concluded on
        self._ended: dict[str, TrialReading] = {}
        self._looked = False
        self._asked = 0.0
        self._refusals = Refusals()
        self._has_made_steps = False

    @property
    def allocation(self) -> SlurmAllocation:
        return self.executor.allocation

    @property
    def is_closing(self) -> bool:
        """True if the allocation is about to end, so that nothing is started in it any more."""
        return self.allocation.remaining_seconds <= self.times.closing_seconds

    def read_trials(self, sweep: Sweep) -> list[TrialReading]:
        """Trials whose end is known are not read again, and Slurm is asked only about jobs beside this one."""
        self._look_back(sweep)
        self._collect(sweep)
        if self.is_closing and self.running:
            self.interrupt_all(sweep, AT_THE_END)
        open_trials = [trial for trial in sweep.record.trials if trial.trial_id not in self._ended]
        read = [sweep.read_trial(trial) for trial in open_trials]
        # `_collect` has just asked about these. Ended ones count as running until their results must have appeared.
        own = [replace(each, job=RUNNING) for each in read if self._is_own(each)]
        readings = {each.name: each for each in [*own, *reconcile(each for each in read if not self._is_own(each))]}
        # A result may be there while its step still ends, and until then the step holds its devices.
        self._ended |= {name: each for name, each in readings.items() if each.measurement and name not in self.running}
        return [readings.get(trial.trial_id) or self._ended[trial.trial_id] for trial in sweep.record.trials]

    def start(self, sweep: Sweep, readings: Sequence[TrialReading]) -> list[str]:
        """Start those that fit beside what runs, and that are expected to end before the allocation does."""
        if self.why_given_up or self._refusals.are_recent or not self._lives_on():
            return []
        offered = [each for each in readings if not self._is_refused(each)]
        expected = Expectation.after(self._ended.values(), SECONDS_PER_MINUTE * self.executor.slurm.time_limit_minutes)
        times = [(each, expected.seconds(each.trial)) for each in offered]
        candidates = [WaitingTrial(each.name, shape_of(each.planned), seconds) for each, seconds in times]
        remaining = {name: step.remaining_seconds(expected) for name, step in self.running.items()}
        by_name = {each.name: each for each in offered}
        for candidate, placement in choose_steps(filter(self._can_end, candidates), self._room, remaining):
            self._begin(sweep, by_name[candidate.trial_id], placement)
        self._is_stuck = bool(offered) and not self.running
        return [name for name in by_name if name in self.running]

    def end(self, readings: Sequence[TrialReading], outcome: Outcome, cause: str) -> None:
        end_all([self.running[each.name] for each in readings if each.name in self.running])
        elsewhere = [each.submission for each in readings if each.awaits_slurm and not self._is_own(each)]
        cancel_jobs([submission for submission in elsewhere if submission])
        for each in readings:
            self._forget(each.name)
            self._silent.pop(each.name, None)
            self._ended.pop(each.name, None)
            started = each.submission.submitted if each.submission else time.time()
            each.folder.write_verdict(without_numbers(each.planned.fingerprint, outcome, cause, started))

    def room(self) -> int | None:
        return 0 if self.is_closing else self._room.num_free

    def has_news(self) -> bool:
        ended = any(step.has_ended for step in self.running.values())
        may_ask = time.monotonic() - self._asked >= ASK_SECONDS
        due = may_ask and any(step.is_settled for step in self._silent.values())
        return ended or due or (self.is_closing and bool(self.running))

    @property
    def why_given_up(self) -> str:
        """The reason why Slurm makes no steps here any more, though there is room; empty if it does make them."""
        return self._refusals.said if self._refusals.count >= MOST_REFUSALS else ""

    def is_given_back(self) -> bool:
        return (self.is_closing or self._is_stuck or bool(self.why_given_up)) and not self.running and not self._silent

    def interrupt_all(self, sweep: Sweep, cause: str) -> None:
        """End every step; the trials are run again, unless a person has cancelled the sweep."""
        is_cancelled = History.kept_in(sweep.folder).is_cancelled
        outcome, cause = (Outcome.CANCELLED, CANCELLED) if is_cancelled else (Outcome.PREEMPTED, cause)
        self.end([sweep.read_trial(step.trial) for step in self.running.values()], outcome, cause)

    def _is_own(self, reading: TrialReading) -> bool:
        return reading.name in self.running or reading.name in self._silent

    def _can_end(self, candidate: WaitingTrial) -> bool:
        """True if the trial ends before the allocation. One that is too long for any is tried in a new one."""
        remaining, whole = (
            each - self.times.closing_seconds for each in (self.allocation.remaining_seconds, self.allocation.seconds)
        )
        is_new = remaining > max(0.0, whole - NEW_SECONDS)
        return candidate.seconds <= remaining or (candidate.seconds > whole and is_new)

    def _is_refused(self, reading: TrialReading) -> bool:
        """Write down that the allocation is too small for a trial, also where none of its nodes has failed."""
        shape, most = shape_of(reading.planned), max(self._slots.values(), default=0)
        if not shape.parts and shape.num_nodes <= self.allocation.num_nodes and shape.devices_per_node <= most:
            return False
        reason = f"needs {shape} (nodes x devices), and the allocation has {self.allocation.num_nodes} x {most}"
        reading.folder.path.mkdir(parents=True, exist_ok=True)
        ended = without_numbers(reading.planned.fingerprint, Outcome.INFEASIBLE, reason, time.time())
        reading.folder.write_measurement(ended)
        self._ended.pop(reading.name, None)
        return True

    def _begin(self, sweep: Sweep, reading: TrialReading, placement: StepPlacement) -> None:
        attempt = reading.next_attempt  # counted before `prepare` forgets what earlier attempts left
        work, shape = FolderWork(sweep.prepare(reading.trial), attempt), shape_of(reading.planned)
        submission, process = self.executor.start(self.job, work, shape, placement)
        self.running[reading.name] = RunningStep(reading.trial, submission, placement, process, time.monotonic())
        self._ended.pop(reading.name, None)

    def _look_back(self, sweep: Sweep) -> None:
        """Once, adopt the steps that an earlier controller of this allocation left, and conclude on the others."""
        if self._looked:
            return
        try:
            alive = running_steps(self.allocation.job_id)
        except SlurmSilent:  # until it answers, they count as running
            return
        for reading in sweep.read():
            submission = reading.submission
            if reading.measurement is not None or submission is None or not self._is_inside(submission):
                continue
            # By the name, which no other step has; a number is known only to the srun that got it.
            if nodes := alive.get(submission.job_name or ""):
                self._adopt(reading.trial, submission, nodes)
            else:
                # If Slurm has started the allocation again, its steps went with the run before; else how they ended is
                # not known.
                state = SlurmJobState("PENDING" if self.allocation.restarts else "")
                reading.folder.write_verdict(allocation_end(reading, submission, state))
        self._looked = True

    def _is_inside(self, submission: Submission) -> bool:
        here = (self.allocation.job_id, self.allocation.job_name)
        return submission.inside is not None and (submission.inside.job_id, submission.inside.job_name) == here

    def _adopt(self, trial: Trial, submission: Submission, nodes: tuple[str, ...]) -> None:
        """Let a step go on. Nobody knows any more which devices it was given, so it counts as holding its nodes."""
        own_nodes = tuple(node for node in nodes if node in self._slots)
        placement = StepPlacement(own_nodes, tuple(range(max((self._slots[node] for node in own_nodes), default=0))))
        self._room.take(trial.trial_id, placement)
        self.running[trial.trial_id] = RunningStep(trial, submission, placement, None, time.monotonic())

    def _collect(self, sweep: Sweep) -> None:
        """Free what ended steps held, and conclude on those that left no measurement."""
        for name in ended_steps(self.running, self.allocation.job_id):
            step = self._forget(name)
            assert step is not None
            step.ended = time.monotonic()
            said = why_not_created(step.submission)
            if said and self._is_at_fault(step, said):
                sweep.folder_of(step.trial).submission.unlink()  # nothing ran, so this was no attempt of the trial's
                self.say(f"{name} goes back to the queue: {said}")
                continue
            # A step that was made ends the row of refusals, in which alone they count.
            self._refusals.count, self._has_made_steps = 0, self._has_made_steps or not said
            self._silent[name] = step
            self.num_ended += 1
        silent = {name: sweep.read_trial(step.trial) for name, step in self._silent.items()}
        for name, reading in silent.items():
            if reading.measurement is not None:
                del self._silent[name]
        due = [name for name, step in self._silent.items() if step.is_settled]
        if due and self._lives_on():
            for name in due:
                step = self._silent.pop(name)
                remaining = self._room.devices.keys() | self._draining
                lost = [node for node in step.placement.nodes if node not in remaining]
                ended = step_end(silent[name], step.submission, step.exit_code, step.placement.nodes, lost)
                silent[name].folder.write_verdict(ended)

    def _is_at_fault(self, step: RunningStep, said: str) -> bool:
        """True if it is the allocation's fault that Slurm has not made a step, and not that of `slurm`'s settings.

        It is where Slurm has made others, or where a node has been lost: then Slurm 22.05 never frees the cores of the
        steps that ran, says `step creation still disabled`, and one such refusal is enough.
        """
        self._lives_on()
        if any(node not in self._room.devices for node in step.placement.nodes):
            return True
        has_lost_nodes = len(self._room.devices) < len(self._slots)
        with suppress(SlurmSilent):
            names = running_steps(self.allocation.job_id)
            self._has_made_steps |= any(other.submission.job_name in names for other in self.running.values())
        if has_lost_nodes or self._has_made_steps:
            self._refusals.add(step, said, MOST_REFUSALS if has_lost_nodes else 1)
        return has_lost_nodes or self._has_made_steps

    def _lives_on(self) -> bool:
        """Ask whether the allocation goes on, so that a step's end is its own, and leave out nodes that it has lost.

        Where it ends, or is started again, Slurm ends its steps, and this process next.
        """
        self._asked = time.monotonic()
        try:
            now = self.ask()
        except (SlurmSilent, UsageError):
            return False
        self._draining = now.draining
        remaining = {node.name for node in now.nodes}
        self._room.leave_out([node for node in self._room.devices if node not in remaining])
        return now.is_running

    def _forget(self, name: str) -> RunningStep | None:
        self._room.give_back(name)
        return self.running.pop(name, None)


@dataclass
class Refusals:
    """The number of times in a row that Slurm has not made a step, and what srun said the last time.

    Steps that were asked for together count once.
    """

    count: int = 0
    said: str = ""
    last: float = float("-inf")

    @property
    def are_recent(self) -> bool:
        return time.monotonic() - self.last < PAUSE_SECONDS

    def add(self, step: RunningStep, said: str, weight: int) -> None:
        if step.began > self.last:
            self.count, self.last = self.count + weight, time.monotonic()
        self.said = said
