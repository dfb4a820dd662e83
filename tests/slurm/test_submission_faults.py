"""A submitter dies, an answer is lost, a limit is met: what Slurm took runs once, and the rest is sent later.

A stand-in for sbatch meets the fault, and hands what it lets through to the real one.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from conf.errors import UsageError
from conf.types.sites import SlurmSpec
from launcher.cancel import cancel_sweep
from launcher.slurm.executor import SlurmJob
from launcher.slurm.reconcile import INTERRUPTED, reconcile
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.launcher.points_alone import submit_points
from tests.slurm.conftest import WaitUntil
from train_core.trial.measurement import Outcome

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("slurm_cluster")]

REAL = "/usr/bin/sbatch"
BEFORE_IT_IS_CALLED = "kill -9 $PPID; exit 1"
BEFORE_ITS_ANSWER = f'{REAL} "$@"; kill -9 $PPID'
ANSWER_LOST = f'{REAL} "$@"; echo "sbatch: error: Batch job submission failed: Socket timed out" >&2; exit 1'
ONE_ARRAY_OF_TWO = f"""
took=$(dirname "$0")/took
grep -q '^#SBATCH --array=0-1%' "$1" && [ ! -e "$took" ] && touch "$took" && exec {REAL} "$@"
echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2
echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit)" >&2
exit 1
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`stand_in("script")` takes the place of sbatch; an empty script gives it back."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")

    def install(script: str) -> None:
        sbatch = folder / "sbatch"
        sbatch.write_text(f"#!/bin/bash\n{script}\n")
        sbatch.chmod(0o755)
        if not script:
            sbatch.unlink()

    return install


@pytest.fixture
def sweep_of(folder: SweepFolder, record_of: RecordOf) -> Callable[[int], Sweep]:
    """`sweep_of(3)` is a sweep of so many trials."""
    return lambda count: Sweep(folder, record_of([{"training.seed": seed} for seed in range(count)]))


@pytest.fixture(scope="session")
def held(slurm: SlurmSpec) -> SlurmSpec:
    """Jobs that wait in the queue until they are cancelled."""
    return slurm.model_copy(update={"extra_sbatch": {"hold": True}})


def submit_and_die(sweep: Sweep, slurm: SlurmSpec, job: SlurmJob = print) -> None:
    """In a process of its own, which the stand-in for sbatch kills."""
    child = os.fork()
    if child == 0:
        try:
            submit_points(sweep, slurm, job=job)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def seen(sweep: Sweep) -> list[TrialReading]:
    return reconcile(sweep.read())


def test_what_slurm_took_before_the_submitter_died_is_found_shown_and_cancelled_and_the_rest_is_sent(
    sweep_of: Callable[[int], Sweep], held: SlurmSpec, stand_in: Callable[[str], None]
) -> None:
    sweep = sweep_of(2)
    stand_in(BEFORE_IT_IS_CALLED)
    submit_and_die(sweep, held)
    assert [(each.outcome, each.cause) for each in seen(sweep)] == [(Outcome.PENDING, INTERRUPTED)] * 2
    assert cancel_sweep(sweep) == 0

    stand_in(BEFORE_ITS_ANSWER)
    submit_and_die(sweep, held)
    assert [each.job_id for each in sweep.read()] == [None, None]
    stand_in("")
    found = seen(sweep)
    assert [(each.scheduler_state, each.cause) for each in found] == [("PENDING", "")] * 2
    assert all(each.job_id and each.job_id.endswith(f"_{element}") for element, each in enumerate(found))
    for each in found:  # thousands of trials may wait
        assert sorted(path.name for path in each.folder.path.iterdir()) == ["submission.json", "trial.json"]
    again = submit_points(sweep, held)
    assert (again.num_submitted, again.num_live) == (0, 2)
    assert cancel_sweep(sweep) == 2


def test_a_job_whose_submitter_died_runs_at_once_and_names_itself(
    sweep_of: Callable[[int], Sweep],
    slurm: SlurmSpec,
    stand_in: Callable[[str], None],
    wait_until: WaitUntil,
) -> None:
    def job(folder: str) -> None:
        from pathlib import Path

        from launcher import job
        from train_core.trial.folder import TrialFolder

        job.PATIENCE_SECONDS = 0
        if job.own_submission(TrialFolder(folder)) is not None:
            Path(folder, "metrics.jsonl").touch()

    sweep = sweep_of(2)
    stand_in(BEFORE_ITS_ANSWER)
    submit_and_die(sweep, slurm, job)
    wait_until(sweep.folder, sweep.record, lambda states: all(each.folder.metrics.exists() for each in states), 30)
    assert [each.job_id.rpartition("_")[2] for each in sweep.read() if each.job_id] == ["0", "1"]
    assert (sweep.read()[0].folder.logs / "slurm.err").exists()


def test_jobs_that_the_sites_own_sbatch_calls_otherwise_are_found_by_their_script(
    sweep_of: Callable[[int], Sweep], held: SlurmSpec, stand_in: Callable[[str], None]
) -> None:
    sweep = sweep_of(2)
    stand_in(f'{REAL} --job-name=of-the-site "$@"; kill -9 $PPID')
    submit_and_die(sweep, held)
    assert [each.scheduler_state for each in seen(sweep)] == ["PENDING"] * 2
    assert all(each.job_id for each in sweep.read())
    assert cancel_sweep(sweep) == 2


def test_a_job_that_slurm_took_though_its_answer_was_lost_is_not_sent_twice(
    sweep_of: Callable[[int], Sweep], held: SlurmSpec, stand_in: Callable[[str], None]
) -> None:
    sweep = sweep_of(1)
    stand_in(ANSWER_LOST)
    summary = submit_points(sweep, held)
    assert [array.job_id for array in summary.arrays] == [sweep.read()[0].job_id]
    assert cancel_sweep(sweep) == 1


def test_a_limit_of_queued_jobs_takes_what_fits_says_so_and_the_same_command_sends_the_rest(
    sweep_of: Callable[[int], Sweep], held: SlurmSpec, stand_in: Callable[[str], None]
) -> None:
    sweep = sweep_of(4)
    stand_in(ONE_ARRAY_OF_TWO)
    with pytest.raises(
        UsageError,
        match=r"2 trials were submitted \(job \d+\), and then: Slurm takes no more jobs now: "
        r"sbatch: error: QOSMaxSubmitJobPerUserLimit .*Give the same command again when some have ended",
    ):
        submit_points(sweep, held)
    assert [each.job_id is not None for each in sweep.read()] == [True, True, False, False]
    stand_in("")
    rest = submit_points(sweep, held)
    assert (rest.num_submitted, rest.num_live) == (2, 2)
    assert cancel_sweep(sweep) == 4
