"""Why a sweep stops although trials are left: too many failed, all fail alike, or its deadline has passed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence

from conf.grouped import grouped
from conf.units import count_of
from launcher.control.attempts import submission_time_of
from launcher.control.rules import Rules
from sweeps.folder.journal import History
from sweeps.reading import TrialReading
from train_core.trial.measurement import Fault, Outcome

FAILURES = (Outcome.FAILED, Outcome.TIMED_OUT)
"""Outcomes that `controller.fail_fast` counts."""

OF_A_MISTAKE = (Fault.INPUT, Fault.CRASH, Fault.UNREAD)
OF_THE_COMMAND = re.compile(
    r"SyntaxError|IndentationError|ImportError|ModuleNotFoundError|can't open file|No such file|No such option"
    r"|command not found|cannot be started|is no folder|unrecognized arguments|required: |its log"
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
