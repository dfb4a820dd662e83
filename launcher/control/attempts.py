"""Attempts of trials: what the journal lacks of one, which trials have another, on which nodes it is not to run.

At the end: why a sweep stops although trials are left, as too many failed, all fail alike, or its deadline has passed.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from conf.grouped import grouped
from conf.units import count_of
from launcher.control.rules import Budget, Rules
from launcher.control.workplace import ChargedTime
from sweeps.folder.journal import Ended, Entry, History, Started, Submitted
from sweeps.folder.submission import EndedAttempt
from sweeps.reading import Reading, TrialReading
from train_core.trial.measurement import Fault, Outcome

CLOSING_SECONDS = 60.0
"""A job that Slurm still counts as running so long after its training has ended is not waited for any more."""


def submission_time_of(reading: TrialReading) -> float:
    """Return what tells the last attempt from all others: when it was submitted; 0.0 where none was."""
    return reading.submission.submitted if reading.submission else 0.0


def is_in_flight(reading: TrialReading) -> bool:
    """True if its job is queued or running, or may be: nobody has found that it ended."""
    if reading.is_in_slurm:
        return reading.awaits_slurm
    return reading.measurement is None and reading.outcome is Outcome.RUNNING


def submissions(reading: TrialReading, history: History) -> list[Entry]:
    """The trial's last attempt, if the journal has not been told that it was submitted."""
    submission = reading.submission
    if submission is None or history.course_of(reading.name).submitted == submission.submitted:
        return []
    return [Submitted(trial_id=reading.name, submitted=submission.submitted, attempt=submission.attempt)]


def has_news_of_an_end(reading: TrialReading, history: History) -> bool:
    """True if the last attempt has ended, and the journal does not know it."""
    exists = reading.submission is not None or reading.measurement is not None
    return exists and history.course_of(reading.name).ended != submission_time_of(reading) and not is_in_flight(reading)


def is_charged_still(reading: TrialReading, charged: ChargedTime | None) -> bool:
    """True if Slurm goes on charging for an attempt that has ended, or has not told what it charges.

    A job ends some seconds after its training, and the accounting may hear of a job's start only later than that.
    """
    if charged is None or charged.is_over or reading.measurement is None:
        return False
    return time.time() - reading.measurement.ended < CLOSING_SECONDS


def news(reading: TrialReading, history: History, budget: Budget, charged: ChargedTime | None = None) -> list[Entry]:
    """Return what the journal lacks of the trial's last attempt; `charged` is what Slurm charges for it, if it does."""
    course, key = history.course_of(reading.name), submission_time_of(reading)
    entries = submissions(reading, history)
    if reading.submission is None and reading.measurement is None:
        return entries
    if reading.outcome is Outcome.RUNNING and course.started != key:
        entries.append(Started(trial_id=reading.name, submitted=key))
    if has_news_of_an_end(reading, history) and not is_charged_still(reading, charged):
        # Slurm counts from the job's start to its end, in all of its runs, and that is what is paid for.
        took = budget.num_devices(reading.trial) * charged.seconds if charged else 0.0
        if charged is None or not charged.is_over:
            # All that is seen here is the training, which begins after its job and ends before it.
            took = max(took, budget.device_seconds(reading.trial, _seconds(reading), reading.num_runs))
        outcome = reading.measurement.outcome if reading.measurement else None
        entries.append(Ended(trial_id=reading.name, submitted=key, outcome=outcome, device_seconds=took))
    return entries


def _seconds(reading: TrialReading) -> float:
    """Return how long the attempt took; of one that was interrupted, until its last sign of life.

    Of a job that Slurm started again nobody knows when its earlier runs ended. All since it was submitted counts, which
    the time limit of each run bounds: a budget may be charged too much then, and never too little.
    """
    if reading.measurement is not None and reading.submission is not None and reading.num_runs > 1:
        return reading.measurement.ended - reading.submission.submitted
    if reading.measurement is not None:
        return reading.measurement.ended - reading.measurement.started
    beat, submission = reading.heartbeat_age_seconds, reading.submission
    return time.time() - beat - submission.submitted if beat is not None and submission else 0.0


RETRIED_ANYWHERE = frozenset({Fault.NODE, Fault.PREEMPTED, Fault.LOST, Fault.PREFLIGHT})
"""These say nothing about the trial, which is submitted again up to `max_resubmits` times."""

RETRIED_ELSEWHERE = frozenset({Fault.HANG, Fault.HARDWARE, Fault.START})
"""These may be the trial's fault or the node's: it is tried once more, on other nodes."""

MOST_MOVES = 1
"""How often a trial is tried elsewhere."""

LEAVES_NODES = RETRIED_ELSEWHERE | {Fault.PREFLIGHT}
"""After these the next attempt asks for other nodes."""

BLAMES_NODE = LEAVES_NODES | {Fault.NODE}
"""These make the nodes of the job suspects."""

BAD_NODE_SUSPICION = 2.0
"""A node is left out once its parts of blame add up to this. A failed trial is one, in equal parts for its nodes."""


RETRIED_BY_ORDER = frozenset(
    {Outcome.FAILED, Outcome.TIMED_OUT, Outcome.INFEASIBLE, Outcome.NODE_FAILED, Outcome.PREEMPTED}
)
"""Outcomes that `--retry-failed` runs again. Out of memory is none of them: the same plan needs as much."""

BAD_ENDS = RETRIED_BY_ORDER | {Outcome.OUT_OF_MEMORY}
"""Outcomes that say nothing of another place."""


def is_to_run(reading: TrialReading, history: History, rules: Rules) -> bool:
    """True if the trial is to be submitted, for the first time or again.

    Never one with a result that is to be kept, or with a live job. A person's retry always counts; else a trial has
    to be selected, possible, wanted by the command and not cancelled, and `may_run_again` has to allow it.
    """
    course, trial = history.course_of(reading.name), reading.trial
    if trial.experiment is None or is_in_flight(reading) or reading.outcome is Outcome.COMPLETED:
        return False
    if course.wants_another(submission_time_of(reading)):
        return True
    if not trial.selected or trial.infeasible_reason is not None or course.is_cancelled:
        return False
    if not (trial.stage or rules.wants(trial)):
        return False
    # A person who cancels a job while the sweep goes on does not want it back until the command is given again.
    is_new, begun = course.ended_before_command, history.begun
    if (
        is_new
        and begun
        and reading.submission
        and reading.outcome in BAD_ENDS
        and reading.is_in_slurm != begun.on_slurm
    ):
        return True  # what failed on this machine, if the command is for Slurm, or the other way round
    return may_run_again(reading, rules.max_resubmits, retry_cancelled=is_new)


def may_run_again(reading: Reading, max_resubmits: int, *, retry_cancelled: bool) -> bool:
    """True if the trial has no result that is to be kept, and may be tried once more.

    Args:
        retry_cancelled: what a person cancelled too, or found no room. A command that a person gives runs it again; a
            sweep that goes on by itself does not, as it would undo what the person did.
    """
    if reading.measurement is None:
        return True
    why = reading.measurement.why
    # That a place was too small says nothing of the place, or of the room, that another command has.
    if why in (Fault.CANCELLED, Fault.DISK) or reading.measurement.outcome is Outcome.INFEASIBLE:
        return retry_cancelled
    # Ends of one kind count together: a trial that is preempted and then loses a node has had two tries.
    for alike, most in ((RETRIED_ANYWHERE, max_resubmits), (RETRIED_ELSEWHERE, MOST_MOVES)):
        if why in alike:
            return sum(attempt.fault in alike for attempt in reading.earlier_attempts) < most
    return False


class BadNode(NamedTuple):
    """A node on which different trials failed, and what the last of them said."""

    name: str
    num_trials: int
    cause: str


def bad_nodes(readings: Iterable[TrialReading]) -> list[BadNode]:
    """The nodes that no further trial is to be given, the worst first."""
    suspicion: dict[str, float] = defaultdict(float)
    failed: dict[str, list[EndedAttempt]] = defaultdict(list)
    for reading in readings:
        for node, attempt in _blaming_attempts(reading).items():
            # Nobody knows which of its nodes failed an attempt, so that each bears an equal part. A check that looked
            # at nothing but the nodes needs no second trial to agree.
            weight = BAD_NODE_SUSPICION if attempt.fault is Fault.PREFLIGHT else 1.0
            suspicion[node] += weight / len(attempt.nodes)
            failed[node].append(attempt)
    worst = sorted((node for node in suspicion if suspicion[node] >= BAD_NODE_SUSPICION), key=lambda n: -suspicion[n])
    return [BadNode(node, len(failed[node]), max(failed[node], key=lambda each: each.ended).cause) for node in worst]


def _blaming_attempts(reading: TrialReading) -> dict[str, EndedAttempt]:
    """Map each node that may have failed the trial to the attempt that blames it most: a trial counts once for it."""
    blamed = [attempt for attempt in reading.ended_attempts if attempt.fault in BLAMES_NODE]
    # Attempts on few nodes come last and replace the others, because they blame a node most.
    return {node: attempt for attempt in sorted(blamed, key=lambda a: -len(a.nodes)) for node in attempt.nodes}


def nodes_to_avoid(reading: Reading, bad: Iterable[BadNode], num_spare: int) -> tuple[str, ...]:
    """The nodes that the trial's next attempt is not to be given: those where it hung, and those that fail others.

    No more are left out than the cluster can spare, else it never starts.
    """
    own = [node for attempt in reading.ended_attempts if attempt.fault in LEAVES_NODES for node in attempt.nodes]
    # Its own first, because the list is cut where no more nodes can be spared.
    avoided = dict.fromkeys([*own, *(node.name for node in bad)])
    return tuple(sorted(list(avoided)[: max(0, num_spare)]))


FAILURES = (Outcome.FAILED, Outcome.TIMED_OUT)
"""Outcomes that `controller.fail_fast` counts."""

OF_A_MISTAKE = (Fault.INPUT, Fault.CRASH, Fault.UNREAD)
OF_THE_COMMAND = re.compile(
    r"SyntaxError|IndentationError|ImportError|ModuleNotFoundError|can't open file|No such file|No such option"
    r"|command not found|cannot be started|is (?:not a|no) folder|unrecognized arguments|required: |its log"
)
"""Causes that lie in what all trials share: the program, its folder, its command line and how its log is read."""


def why_stopped(readings: Sequence[TrialReading], rules: Rules, history: History) -> str:
    """Return why the sweep stops although trials are left; empty if it goes on."""
    failed = [each for each in readings if _has_failed(each, history)]
    if rules.fail_fast is not None and len(failed) >= rules.fail_fast:
        failures = count_of(len(failed), "trial")
        return f"{failures} failed (controller.fail_fast = {rules.fail_fast}), {failed[-1].name} among them"
    untimed = [each for each in failed if each.measurement and each.measurement.why is Fault.UNTIMED]
    if untimed and not _others_may_be_timed(readings, untimed):
        return f"{untimed[-1].name} ended well, but without the time of a step no trial counts: {untimed[-1].cause}"
    if shared := _shared_mistake(readings, failed, history):
        return shared
    if is_past_deadline(rules, history):
        return f"budget.deadline_hours = {rules.budget.limits.deadline_hours:g} have passed"
    return ""


def is_past_deadline(rules: Rules, history: History) -> bool:
    """True if the time is over that the sweep has from its first command on."""
    begun = history.first_begun
    return begun is not None and rules.budget.is_past_deadline(begun, time.time())


def _shared_mistake(readings: Sequence[TrialReading], failed: Sequence[TrialReading], history: History) -> str:
    """Return the cause from which all points have failed so far, which so would all others; empty without one."""
    completed = [each for each in readings if not each.trial.stage and each.outcome is Outcome.COMPLETED]
    if not all(history.course_of(each.name).ended_before_command for each in completed):
        return ""
    ended = [
        each for each in failed if not each.trial.stage and each.measurement and each.measurement.why in OF_A_MISTAKE
    ]
    for (_, enough), alike in grouped(ended, _kind_of).items():
        if len(alike) >= enough:
            return f"{count_of(len(alike), 'trial')} failed alike, and none has completed: {alike[0].cause}"
    return ""


def _has_failed(reading: TrialReading, history: History) -> bool:
    course = history.course_of(reading.name)
    # Neither what failed before the command was given, nor what was ordered to run again.
    is_forgiven = course.ended_before_command or course.wants_another(submission_time_of(reading))
    return reading.outcome in FAILURES and not is_forgiven


def _others_may_be_timed(readings: Iterable[TrialReading], untimed: Iterable[TrialReading]) -> bool:
    """True if the patterns that found no time found one in another log, or others read the log of one that is left."""
    in_vain = [each.experiment.trainer.log for each in untimed if each.experiment is not None]
    for each in readings:
        is_alike = each.experiment is not None and each.experiment.trainer.log in in_vain
        is_left = each.outcome is Outcome.PENDING and each.trial.selected
        if (each.outcome is Outcome.COMPLETED and is_alike) or (is_left and not is_alike):
            return True
    return False


def _kind_of(failed: TrialReading) -> tuple[str, int]:
    """What is the same in failures of one kind, and how many of them say that all trials share the mistake."""
    is_unread = failed.measurement is not None and failed.measurement.why is Fault.UNREAD
    is_of_the_command = is_unread or OF_THE_COMMAND.search(failed.cause) is not None
    return (re.sub(r"\d+", "", failed.cause), 2) if is_of_the_command else (failed.cause, 3)
