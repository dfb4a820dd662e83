"""The end of a trial that was a step of an allocation and wrote no measurement."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from launcher.slurm.query import SlurmJobState
from launcher.slurm.silent_jobs import outcome_in_words, verdict
from sweeps.folder.submission import Submission
from sweeps.reading import Reading
from train_core.job.failures import failed_measurement, fault_of_signal, first_cause, lost_a_peer, without_numbers
from train_core.log_files import tail
from train_core.measurement import Measurement, Outcome

NODE_FAILURE = re.compile(r"srun: error: Node failure on (\S+)")
NOT_CREATED = re.compile(r"srun: error: (Unable to (?:create step|confirm allocation) .*)")
NOT_STARTED = re.compile(r"srun: error: (Unable to create step.*|.*Invalid .*specification.*)")
TASK_ENDED = re.compile(r"srun: error: \S+: tasks? \d")
# Slurm names its own reasons after DUE TO; a line without one tells of a person, or of srun itself.
STEP_CANCELLED = re.compile(r"\*\*\* STEP \S+ ON \S+ CANCELLED AT (?!.* DUE TO )")

OUTCOME_OF_ALLOCATION = {"NODE_FAIL": Outcome.NODE_FAILED, "CANCELLED": Outcome.CANCELLED}
"""In whatever other state an allocation ends, its trials were interrupted, and are run again."""

STATE_IN_WORDS = {Outcome.TIMED_OUT: "TIMEOUT", Outcome.PREEMPTED: "PREEMPTED", Outcome.NODE_FAILED: "NODE_FAIL"}
"""How Slurm calls the end of a step whose own lines say this."""

WORD_OF_STATE = {
    "TIMEOUT": "came to its time limit",
    "CANCELLED": "was cancelled",
    "NODE_FAIL": "lost a node",
    "PREEMPTED": "was preempted",
    "PENDING": "was started again",
}


def step_end(
    reading: Reading, submission: Submission, exit_code: int, nodes: Sequence[str], lost: Sequence[str] = ()
) -> Measurement:
    """Return the measurement that is written for a step that ended while its allocation lives.

    Args:
        exit_code: of its srun.
        nodes: on which it ran.
        lost: those of them that are no longer the allocation's.
    """
    log = tail(submission.error_of(0))
    measurement = verdict(reading, submission, _state(log, exit_code, nodes, lost))
    # The controller itself ends a srun with SIGTERM, and does not ask then why it ended.
    if exit_code < 0 and measurement.outcome is Outcome.FAILED and measurement.failing_rank is None:
        cause = f"its srun was killed by {signal.Signals(-exit_code).name}"
        return measurement.model_copy(update={"cause": cause, "fault": fault_of_signal(-exit_code)})
    if (words := NOT_STARTED.search(log)) and measurement.outcome is Outcome.FAILED:
        return measurement.model_copy(update={"cause": f"srun could not start it: {words[1]}"})
    return measurement


def why_not_created(submission: Submission) -> str:
    """Return srun's reason if Slurm did not make the step at all, so that nothing of it ran; else an empty text."""
    match = NOT_CREATED.search(tail(submission.error_of(0)))
    return match[1] if match else ""


def _state(log: str, exit_code: int, nodes: Sequence[str], lost: Sequence[str]) -> SlurmJobState:
    """Return the step's end as a Slurm state, from srun's words: they exist without accounting, and at once."""
    # A lost node comes first, because whatever else srun says follows from it.
    if failed := lost or NODE_FAILURE.findall(log):
        return SlurmJobState("NODE_FAIL", nodes=",".join(failed))
    said = outcome_in_words(log)
    failed_as = STATE_IN_WORDS.get(said, "FAILED") if said is not None else "FAILED"
    name = "COMPLETED" if exit_code == 0 else failed_as
    # Slurm cancels a step whose srun has gone, too, and nobody wanted that.
    is_cancelled = exit_code >= 0 and _was_cancelled(log)
    return SlurmJobState("CANCELLED" if is_cancelled else name, nodes=",".join(nodes))


def _was_cancelled(log: str) -> bool:
    """True if somebody cancelled the step. srun itself does so too, once it has said that a task failed."""
    cancelled, task = STEP_CANCELLED.search(log), TASK_ENDED.search(log)
    if cancelled is None or outcome_in_words(log) is not None:
        return False
    return task is None or cancelled.start() < task.start()


def allocation_end(reading: Reading, submission: Submission, state: SlurmJobState | None) -> Measurement:
    """Return the measurement for a step whose allocation ended in this state, or is unknown to Slurm (None).

    The ranks' own words count, except those of ranks that lost their peers, as all of them do at such an end.
    """
    fingerprint, failure = reading.planned.fingerprint, first_cause(reading.folder.read_failures())
    if failure is not None and not lost_a_peer(failure):
        return failed_measurement(fingerprint, failure, submission.submitted)
    name = state.name if state else ""
    outcome = OUTCOME_OF_ALLOCATION.get(name, Outcome.PREEMPTED)
    cause = f"the allocation in which it ran {WORD_OF_STATE.get(name, 'ended')}"
    return without_numbers(fingerprint, outcome, cause, submission.submitted, tail(submission.error_of(0))[-2000:])
