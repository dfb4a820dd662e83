"""What Slurm of each version writes at the end of a job, with and without accounting, and what only looks like it.

After published logs and Slurm's own sentences; job numbers, nodes and times are made up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.slurm.query import SlurmJobState
from launcher.slurm.verdict import verdict
from sweeps.folder.submission import JobShape, Submission
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import BuildRecord
from train_core.trial.measurement import Outcome

AT = "2026-01-06T09:55:10"
BAR = " 45%|####5     | 450/1000 [10:00<12:13,  1.33s/it]"
TIMED_OUT, NODE, PREEMPTED, MEMORY = Outcome.TIMED_OUT, Outcome.NODE_FAILED, Outcome.PREEMPTED, Outcome.OUT_OF_MEMORY
CANCELLED, FAILED = Outcome.CANCELLED, Outcome.FAILED
Ended = Callable[[str, str | None], Outcome]


@pytest.fixture
def ended(build_record: BuildRecord, tmp_path: Path) -> Ended:
    """The outcome of a trial whose job's error output is this, and whose state Slurm calls so, or has forgotten."""
    sweep = Sweep(SweepFolder(tmp_path / "runs" / "x"), build_record([{"training.seed": 1}], ()))
    (trial,) = sweep.record.trials
    sweep.prepare(trial)
    submission = Submission(
        executor="slurm",
        job_id="4243",
        hostname="login",
        attempt=1,
        submitted=time.time() - 300,
        shape=JobShape(num_nodes=1, tasks_per_node=1, uses_gpus=False),
        output=str(tmp_path / "%j_%t_log.out"),
        error=str(tmp_path / "%j_%t_log.err"),
    )

    def outcome(log: str, state: str | None) -> Outcome:
        submission.error_of(0).write_text(log)
        known = SlurmJobState(state, time.time(), nodes="c001") if state else None
        return verdict(sweep.read_trial(trial), submission, known).outcome

    return outcome


OOM_KILLS = [
    "slurmstepd: error: Detected 1 oom-kill event(s) in step 3756240.batch cgroup.",
    "slurmstepd: error: Detected 2 oom-kill event(s) in StepId=7.0 cgroup. Some of your processes may have been killed",
    "slurmstepd-fn2: error: Detected 1 oom-kill event(s) in StepId=7.batch. Some of your processes",
    "slurmstepd: error: Detected 12 oom_kill events in StepId=7.0. Some of the step tasks have been OOM Killed.",
    "[2026-09-14T17:14:38.784] error: Detected 1 oom_kill event in StepId=41003.0. Some of the step tasks have",
    "[2026-09-14T17:14:38+02:00] error: Detected 3 oom_kill events in StepId=41003.0.",
    "[Sep 14 17:14:38] error: Detected 1 oom_kill event in StepId=s2k4h8.0. Some of the step tasks",
    "error: Detected 1 oom_kill event in StepId=41003.0. Some of the step tasks have been OOM Killed.",
    "srun: error: c001: task 4: Out Of Memory\nsrun: Terminating job step 3495064.0",
    "srun: error: nid001277: tasks 1-3,7: Out Of Memory\nsrun: Terminating StepId=440575.0",
    " 84: slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0. Some of your processes",
    "slurmstepd: error: Job 7 exceeded memory limit (9000 > 8192), being killed",
    "slurmstepd: error: StepId=7.0 exceeded memory limit (9000 > 8192), being killed",
    "slurmstepd: error: StepId=7.0+1 exceeded virtual memory limit (9000 > 8192), being killed",
    "slurmstepd: error: Exceeded job memory limit",
    f"{BAR}slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks",
    f"loss=2.31[{AT}.000] error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\nsrun: error: c001: task 0: Out Of Memory\n"
    f"slurmstepd: error: *** STEP 7.0 ON c001 CANCELLED AT {AT} DUE TO TASK FAILURE ***",
]


@pytest.mark.parametrize("state", ["FAILED", "OUT_OF_MEMORY", None])
@pytest.mark.parametrize("log", OOM_KILLS)
def test_all_words_about_memory_count_whatever_the_state(log: str, state: str | None, ended: Ended) -> None:
    assert ended(f"some line\n{log}\n", state) is MEMORY


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "before", ["", "{bar}", "{bar}  ", "\r{bar}\r", "40/100 [====>.....] - ETA: 1:20 - loss: 2.31"]
)
@pytest.mark.parametrize("who", ["slurmstepd: error: ", "slurmstepd-c001: error: ", f"[{AT}.000] error: "])
@pytest.mark.parametrize(
    ("words", "outcome"),
    [
        (f"*** JOB 4243 ON c001 CANCELLED AT {AT} DUE TO TIME LIMIT ***", TIMED_OUT),
        (f"*** STEP 4243.0 ON c001 CANCELLED AT {AT} DUE TO TIME LIMIT ***", TIMED_OUT),
        (f"*** JOB 4243 ON c001 CANCELLED AT {AT} DUE TO PREEMPTION ***", PREEMPTED),
        (f"*** STEP 4243.0+1 ON c001 CANCELLED AT {AT} DUE TO PREEMPTION ***", PREEMPTED),
        (f"*** JOB 4243 ON c001 CANCELLED AT {AT} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", NODE),
        (f"*** JOB 4243 ON c001 UNCORRECTABLE MEMORY ERROR AT {AT} ***", NODE),
        (f"*** JOB 4243 ON c001 CANCELLED AT {AT} ***", CANCELLED),
        (f"*** JOB 4243 ON c001 CANCELLED AT {AT} DUE to SIGNAL Terminated ***", CANCELLED),
    ],
)
def test_a_forgotten_jobs_words_tell_its_end(before: str, who: str, words: str, outcome: Outcome, ended: Ended) -> None:
    assert ended(f"first line\n{before.format(bar=BAR)}{who}{words}\n", None) is outcome


@pytest.mark.parametrize(
    ("log", "outcome"),
    [
        (f"slurmstepd: *** JOB 830329 CANCELLED AT {AT} DUE TO TIME LIMIT on n447 ***", TIMED_OUT),
        (
            "srun: Force Terminated job 7\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
            f"  0: slurmstepd: error: *** STEP 7.0 ON nid01934 CANCELLED AT {AT} DUE TO TIME LIMIT ***\n"
            "srun: error: nid01934: tasks 2,4-5,7: Terminated",
            TIMED_OUT,
        ),
        ("srun: error: Node failure on c002", NODE),
        # Slurm ran it again after that, and has forgotten how that ended: nobody cancelled it.
        (f"slurmstepd: error: *** JOB 7 ON c001 CANCELLED AT {AT} DUE TO JOB REQUEUE ***", FAILED),
        (f"slurmstepd: error: *** STEP 7.0 ON c001 CANCELLED AT {AT} DUE TO TASK FAILURE ***", FAILED),
        (f"slurmstepd: error: *** JOB 7 ON c001 CANCELLED AT {AT} DUE TO TASK FAILURE ***", FAILED),
    ],
)
def test_other_words_of_a_forgotten_job(log: str, outcome: Outcome, ended: Ended) -> None:
    assert ended(f"{log}\n", None) is outcome


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ("TIMEOUT", TIMED_OUT),
        ("DEADLINE", TIMED_OUT),
        ("PREEMPTED", PREEMPTED),
        ("NODE_FAIL", NODE),
        ("BOOT_FAIL", NODE),
        ("OUT_OF_MEMORY", MEMORY),
        ("REVOKED", CANCELLED),
        ("CANCELLED", CANCELLED),
    ],
)
def test_a_state_needs_no_words(state: str, outcome: Outcome, ended: Ended) -> None:
    assert ended("", state) is outcome


@pytest.mark.parametrize("state", ["FAILED", None])
@pytest.mark.parametrize(
    "line",
    [
        "the time limit of the last run was too short",
        "WARNING: job ended DUE TO TIME LIMIT, resubmit it",
        f'log of the last run: "slurmstepd: error: *** JOB 7 ON c1 CANCELLED AT {AT} DUE TO TIME LIMIT ***"',
        f"found: slurmstepd: error: *** JOB 7 ON c1 CANCELLED AT {AT} DUE TO TIME LIMIT ***",
        f"[{AT}] [INFO] slurmstepd: error: *** JOB 7 ON c1 CANCELLED AT {AT} DUE TO PREEMPTION ***",
        f"[{AT}] error: the time limit of 3 s for an answer has passed, DUE TO TIME LIMIT",
        f"[{AT}] error: RuntimeError: CUDA is fine, the oom_kill event is a metric's name",
        f"[{AT}] error: worker 3: Out Of Memory is what it said yesterday",
        "error: node failure on c001 is simulated",
        "INFO Detected 1 oom_kill event in StepId=7.0.",
        "# srun: error: c001: task 0: Out Of Memory",
        "'srun: error: c001: task 0: Out Of Memory'",
        "read: srun: error: Node failure on c002",
        "slurmstepd: error: Exceeded job memory limit at some point.",
        "watching for 'oom-kill event' and 'exceeded memory limit' in dmesg",
    ],
)
def test_what_the_program_prints_is_not_slurms_word(line: str, state: str | None, ended: Ended) -> None:
    assert ended(f"step 1\n{line}\nstep 2\n", state) is FAILED
