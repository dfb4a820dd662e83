"""Why a step of an allocation ended, told from what Slurm 22.05 and srun wrote (node names and times shortened)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.allocation.nodes import step_end
from launcher.slurm.query import SlurmJobState
from launcher.slurm.verdict import allocation_end
from sweeps.folder.submission import Submission, SurroundingJob
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from train_core.job.failures import failure_of
from train_core.trial.measurement import Fault, Outcome

CANCELLED = "slurmstepd-n1: error: *** STEP 2.4 ON n1 CANCELLED AT 2026-11-22T11:48:48 ***\n"
KILLED = "srun: error: n1: task 0: Killed\nsrun: launch/slurm: _step_signal: Terminating StepId=2.4\n"
TOO_LONG = "slurmstepd-n3: error: *** STEP 2.0 ON n3 CANCELLED AT 2026-11-22T11:50:00 DUE TO TIME LIMIT ***\n"
TOO_LARGE = "slurmstepd-n1: error: StepId=4.0 exceeded memory limit (517332992 > 209715200), being killed\n"
NODE_GONE = "srun: error: Node failure on n3\nsrun: error: n2: tasks 0-1: Killed\n"
REFUSED = "srun: error: Unable to create step for job 4: Invalid generic resource (gres) specification\n"

Ended = Callable[..., tuple[TrialReading, Submission]]


@pytest.fixture
def ended(folder: SweepFolder, record_of: RecordOf, slurm_submission: Callable[..., Submission]) -> Ended:
    """A trial that was a step and left this log."""
    sweep = Sweep(folder, record_of([{}]))

    def build(log: str) -> tuple[TrialReading, Submission]:
        inside = SurroundingJob(job_id="2", job_name="trisweep-test-allocation-1a2b3c4d")
        submission = slurm_submission("2.4", job_name="trisweep-test-0badcafe", inside=inside)
        sweep.prepare(sweep.record.trials[0])
        submission.error_of(0).write_text(log)
        return sweep.read_trial(sweep.record.trials[0]), submission

    return build


@pytest.mark.parametrize(
    ("log", "outcome", "words"),
    [
        (CANCELLED + KILLED, Outcome.CANCELLED, "cancelled"),
        (KILLED + CANCELLED, Outcome.FAILED, "rank 0 was killed by signal 9"),
        (TOO_LONG + "srun: error: n3: tasks 0-1: Terminated\n", Outcome.TIMED_OUT, "time limit"),
        (TOO_LARGE + CANCELLED + KILLED, Outcome.OUT_OF_MEMORY, "memory"),
        (REFUSED, Outcome.FAILED, "srun could not start it: Unable to create step for job 4: Invalid generic resource"),
    ],
)
def test_the_words_of_the_step_say_why_it_ended(ended: Ended, log: str, outcome: Outcome, words: str) -> None:
    told = step_end(*ended(log), 137, ("n1",))
    assert told.outcome is outcome
    assert words in told.cause


def test_a_step_whose_srun_was_killed_was_not_cancelled_by_a_person(ended: Ended) -> None:
    """Slurm cancels its tasks, in the words with which it cancels a step that somebody has ended."""
    told = step_end(*ended(CANCELLED), -9, ("n1",))
    assert (told.outcome, told.why, told.cause) == (Outcome.FAILED, Fault.KILLED, "its srun was killed by SIGKILL")


def test_a_failed_node_is_named_and_its_neighbour_is_not(ended: Ended) -> None:
    told = step_end(*ended(NODE_GONE), 137, ("n2", "n3"))
    assert (told.outcome, told.why, told.nodes) == (Outcome.NODE_FAILED, Fault.NODE, ("n3",))


def test_a_step_on_a_node_that_the_allocation_has_lost_has_not_failed_itself(ended: Ended) -> None:
    told = step_end(*ended(REFUSED), 1, ("n1", "n2"), lost=["n2"])
    assert (told.outcome, told.nodes) == (Outcome.NODE_FAILED, ("n2",))


def test_a_step_that_ended_well_and_left_nothing_has_failed(ended: Ended) -> None:
    assert step_end(*ended(""), 0, ("n1",)).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("state", "outcome", "words"),
    [
        ("TIMEOUT", Outcome.PREEMPTED, "came to its time limit"),
        ("FAILED", Outcome.PREEMPTED, "ended"),
        ("CANCELLED", Outcome.CANCELLED, "was cancelled"),
        ("NODE_FAIL", Outcome.NODE_FAILED, "lost a node"),
    ],
)
def test_a_trial_is_interrupted_by_the_end_of_its_allocation(
    ended: Ended, state: str, outcome: Outcome, words: str
) -> None:
    told = allocation_end(*ended(TOO_LONG), SlurmJobState(state))
    assert told.outcome is outcome
    assert told.cause == f"the allocation in which it ran {words}"


def test_a_rank_that_failed_before_its_allocation_ended_is_the_cause(ended: Ended) -> None:
    reading, submission = ended("")
    reading.folder.write_failure(failure_of(1, ValueError("the data is bad")))
    told = allocation_end(reading, submission, SlurmJobState("TIMEOUT"))
    assert (told.outcome, told.cause) == (Outcome.FAILED, "ValueError: the data is bad")
    assert told.failing_rank == 1


def test_a_rank_that_lost_its_peers_at_the_end_of_its_allocation_is_none(ended: Ended, tmp_path: Path) -> None:
    reading, submission = ended("")
    reading.folder.write_failure(failure_of(1, RuntimeError("Connection closed by peer")))
    assert allocation_end(reading, submission, None).outcome is Outcome.PREEMPTED
