"""Slurm's states and words, turned into outcomes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from launcher.slurm.query import SlurmJobState, _parse_lines
from launcher.slurm.verdict import is_settled, verdict, why_ended
from sweeps.folder.submission import Submission
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from train_core.trial.measurement import Fault, Outcome, RankFailure

Silenced = tuple[TrialReading, Submission]


@pytest.fixture
def silent(folder: SweepFolder, record_of: RecordOf, slurm_submission: Callable[..., Submission]) -> Silenced:
    """A trial whose job has ended, and its submission; the job's words are written to its error file."""
    record = record_of([{"training.seed": 1}])
    sweep = Sweep(folder, record)
    sweep.prepare(record.trials[0])
    return sweep.read_trial(record.trials[0]), slurm_submission("7_0")


@pytest.mark.parametrize(("began", "nodes", "ran"), [(True, "n1", 60), (False, "", 0), (False, "n1", 3600)])
def test_how_long_a_job_waited_is_no_part_of_how_long_it_ran(
    silent: Silenced, began: bool, nodes: str, ran: float
) -> None:
    """Of one that had nodes, on which no rank began, nobody knows when it had them."""
    trial, submission = silent
    submission = submission.model_copy(update={"submitted": 10_000.0})
    if began:
        trial.folder.claim.write_text(f"{submission.attempt}.0\n")
        os.utime(trial.folder.claim, (13_540.0, 13_540.0))
    measurement = verdict(trial, submission, SlurmJobState("TIMEOUT", ended=13_600.0, nodes=nodes))
    assert measurement.ended - measurement.started == ran


@pytest.mark.parametrize(
    ("state", "words", "outcome"),
    [
        ("TIMEOUT", "", Outcome.TIMED_OUT),
        ("OUT_OF_MEMORY", "", Outcome.OUT_OF_MEMORY),
        ("NODE_FAIL", "", Outcome.NODE_FAILED),
        ("CANCELLED", "", Outcome.CANCELLED),
        ("PREEMPTED", "", Outcome.PREEMPTED),
        ("FAILED", "slurmstepd: error: Step 7.0 exceeded memory limit (9 > 8), being killed", Outcome.OUT_OF_MEMORY),
        ("FAILED", "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0", Outcome.OUT_OF_MEMORY),
        ("FAILED", "srun: error: node1: task 0: Segmentation fault", Outcome.FAILED),
        ("FAILED", "srun: error: Unable to create step for job 8: Duplicate job step id", Outcome.NODE_FAILED),
        ("FAILED", "srun: error: Node failure on n3\nsrun: error: node1: task 0: Aborted", Outcome.FAILED),
        ("COMPLETED", "", Outcome.FAILED),
        (
            None,
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
            Outcome.TIMED_OUT,
        ),
        (None, "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***", Outcome.CANCELLED),
        (None, "", Outcome.FAILED),
        # What the program prints is not Slurm's word, nor is a line of our own traceback.
        ("FAILED", "step 3 ended DUE TO NODE FAILURE", Outcome.FAILED),
        (None, "step 3 ended DUE TO NODE FAILURE", Outcome.FAILED),
        ("FAILED", "    return self._followed(programs, oom_kills)\nValueError: 1e-320", Outcome.FAILED),
        ("FAILED", "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026 DUE TO NODE FAILURE ***", Outcome.FAILED),
    ],
)
def test_every_end_has_its_outcome(silent: Silenced, state: str | None, words: str, outcome: Outcome) -> None:
    trial, submission = silent
    submission.error_of(0).write_text(words)
    measurement = verdict(trial, submission, SlurmJobState(state, time.time()) if state else None)
    assert measurement.outcome is outcome
    assert measurement.cause
    assert trial.experiment is not None
    assert measurement.fingerprint == trial.experiment.fingerprint


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("7_0|FAILED BadConstraints|2026-01-01T00:00:00||a|\n", "(Slurm says FAILED: BadConstraints)"),
        ("7_0|FAILED NonZeroExitCode|2026-01-01T00:00:00|n1|a|\n", "(Slurm says FAILED)"),
        ("7_0|FAILED|2026-01-01T00:00:00|None assigned|a|\n", "(Slurm says FAILED)"),
    ],
    ids=["never given a node", "ran", "the accounting tells"],
)
def test_a_job_that_slurm_could_never_start_has_slurms_reason(silent: Silenced, line: str, says: str) -> None:
    trial, submission = silent
    assert verdict(trial, submission, _parse_lines(line)["7_0"]).cause.endswith(says)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("srun: fatal: SLURM_MEM_PER_CPU and SLURM_MEM_PER_NODE are mutually exclusive.", Fault.INPUT),
        ("srun: fatal: Could not establish a configuration source", Fault.START),
    ],
)
def test_options_that_srun_refuses_say_nothing_of_the_node(silent: Silenced, words: str, fault: Fault) -> None:
    trial, submission = silent
    submission.error_of(0).write_text(words)
    measurement = verdict(trial, submission, SlurmJobState("FAILED", time.time(), nodes="node1"))
    assert measurement.why is fault


def test_what_a_job_refuses_to_run_is_the_cause(silent: Silenced) -> None:
    trial, submission = silent
    said = "/runs/a.pkl is not what was submitted: somebody has replaced it. Give the command again."
    lines = f"trisweep refuses: {said}\nsrun: error: node1: task 0: Exited with exit code 1\n"
    submission.error_of(0).write_text(lines)
    measurement = verdict(trial, submission, SlurmJobState("FAILED", time.time()))
    assert (measurement.cause, measurement.why) == (said, Fault.INPUT)


def test_a_ranks_own_words_beat_sruns_report_of_the_peers_it_killed(silent: Silenced) -> None:
    trial, submission = silent
    submission.error_of(0).write_text("srun: error: node1: tasks 0-2: Killed\nsrun: error: node2: task 3: Exited")
    trial.folder.write_failure(
        RankFailure(
            rank=3, outcome=Outcome.OUT_OF_MEMORY, cause="OutOfMemoryError: GPU", traceback="t", time=1.0, blamed=3
        )
    )
    measurement = verdict(trial, submission, SlurmJobState("FAILED", time.time()))
    assert (measurement.outcome, measurement.failing_rank) == (Outcome.OUT_OF_MEMORY, 3)


def test_a_killed_rank_beats_the_complaints_of_peers_that_lost_it(silent: Silenced) -> None:
    trial, submission = silent
    submission.error_of(0).write_text(
        "srun: error: node1: task 0: Exited with exit code 1\nsrun: error: node1: task 2: Killed\n"
    )
    trial.folder.write_failure(
        RankFailure(rank=0, outcome=Outcome.FAILED, cause="RuntimeError: Connection reset", traceback="t", time=1.0)
    )
    measurement = verdict(trial, submission, SlurmJobState("FAILED", time.time()))
    assert (measurement.failing_rank, measurement.cause) == (2, "rank 2 was killed by signal 9")


@pytest.mark.parametrize(
    ("end", "before"),
    [
        ("srun: error: node1: task 0: Exited with exit code 1", "rank 0 ended: Exited with exit code 1"),
        ("", "the job ended without a measurement or an error message (Slurm says FAILED)"),
    ],
    ids=["rank", "job"],
)
@pytest.mark.parametrize("said", ["No space left on device", "Disk quota exceeded"])
def test_the_verdict_on_a_job_whose_log_tells_of_a_full_disk_names_it_and_what_to_do(
    silent: Silenced, end: str, before: str, said: str
) -> None:
    trial, submission = silent
    submission.error_of(0).write_text(f"cp: error writing '/scratch/x': {said}\n{end}\n")
    measurement = verdict(trial, submission, SlurmJobState("FAILED", time.time()))
    assert (measurement.outcome, measurement.why) == (Outcome.FAILED, Fault.DISK)
    assert measurement.cause == (
        f"{before}; it said: cp: error writing '/scratch/x': {said}."
        " Make room there (space, inodes, a quota), and give the same command again"
    )


def test_a_rank_that_srun_ended_is_no_culprit(silent: Silenced) -> None:
    trial, submission = silent
    submission.error_of(0).write_text(
        "srun: error: node1: task 0: Exited with exit code 1\n"
        "slurmstepd-node1: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-01-01T00:00:00 ***\n"
        "srun: error: node1: task 1: Terminated\n"
    )
    lost = "RuntimeError: NCCL error: unhandled system error"
    told = RankFailure(rank=0, outcome=Outcome.FAILED, cause=lost, traceback="t", time=1.0, fault=Fault.HARDWARE)
    trial.folder.write_failure(told)
    measurement = verdict(trial, submission, SlurmJobState("FAILED", time.time(), nodes="node[1-2]"))
    assert (measurement.failing_rank, measurement.why) == (None, Fault.HARDWARE)
    assert measurement.nodes == ("node1", "node2"), "any of them may be to blame"


def test_the_only_rank_that_said_nothing_left_those_that_lost_a_peer(silent: Silenced) -> None:
    """srun says nothing of a task that ends with code 0."""
    trial, submission = silent
    submission.error_of(0).write_text("srun: error: node1: tasks 0,2: Exited with exit code 1\n")
    for rank in (0, 2):
        lost = "RuntimeError: Connection closed by peer"
        trial.folder.write_failure(
            RankFailure(rank=rank, outcome=Outcome.FAILED, cause=lost, traceback="t", time=1.0, blamed=rank)
        )
    failure = why_ended(trial.folder, submission, SlurmJobState("FAILED", time.time()), num_ranks=3)
    assert failure.blamed == 1
    assert failure.cause.startswith("rank 1 ended without a word before the training did")


def test_words_of_a_run_before_a_requeue_are_not_held_against_the_next_one(silent: Silenced) -> None:
    trial, submission = silent
    submission.error_of(0).write_text(
        "Step 7.0 exceeded memory limit\nerror: *** JOB 7 ON n1 CANCELLED AT 2026 DUE TO JOB REQUEUE ***\n"
        "srun: error: node1: task 1: Exited with exit code 3\n"
    )
    measurement = verdict(trial, submission, SlurmJobState("FAILED", time.time()))
    assert (measurement.outcome, measurement.cause) == (Outcome.FAILED, "rank 1 ended: Exited with exit code 3")


def test_nothing_is_concluded_from_an_end_that_was_only_a_moment_ago() -> None:
    now = time.time()
    assert not is_settled(SlurmJobState("COMPLETED", now - 5))
    assert is_settled(SlurmJobState("COMPLETED", now - 60))
    assert not is_settled(SlurmJobState("NODE_FAIL", now - 30))  # Slurm may requeue it yet
    assert is_settled(SlurmJobState("FAILED", now - 3))
    assert not is_settled(SlurmJobState("SUSPENDED", None))
    assert not is_settled(SlurmJobState("REQUEUE_HOLD", None))


def test_queue_listings_are_read_with_ranges_and_reasons() -> None:
    states = _parse_lines(
        "12_[0-1,4%2]|PENDING|N/A||a|\n12_3|CANCELLED by 1000|2026-01-01T00:00:00|node4|a|\n13|RUNNING|Unknown||b|\n"
    )
    assert sorted(states) == ["12_0", "12_1", "12_3", "12_4", "13"]
    assert states["12_3"].name == "CANCELLED"
    assert states["12_3"].ended is not None
    assert states["13"] == SlurmJobState("RUNNING", None, names=frozenset({"b"}))
