"""Trials through qsub, qstat and qdel, as Slurm's wrappers of these names understand them (`slurm-wlm-torque`)."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

import psutil
import pytest

from conf.types.schema import Value
from conf.types.sites import SlurmSpec
from launcher.cancel import cancel_sweep, cancel_trials
from launcher.slurm import reconcile as state
from launcher.slurm.job_status import live_job
from sweeps.folder.journal import History
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.forked_command import run_forked
from tests.launcher.points_alone import submit_points
from tests.slurm.conftest import WaitUntil, has_ended, make_job
from tests.slurm.test_controller import adaptive
from tests.slurm.test_other_trainer import PROGRAM
from tests.waiting import wait_for
from train_core.trial.measurement import Outcome

ON_TWO_NODES: dict[str, Value] = {"parallel.world_size": 4, "parallel.tensor_parallel_size": 2}
TWO_RANKS: dict[str, Value] = {"parallel.world_size": 2, "parallel.tensor_parallel_size": 2}
MPIEXEC = "mpiexec.slurm -n {ranks}"
OF_SLURM = ("SLURM_NODEID", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST", "SLURM_LAUNCH_NODE_IPADDR")
"""The variables of the wrapper's mpiexec from which a task knows its node, and which no PBS machine sets."""

pytestmark = [pytest.mark.slurm]


@pytest.fixture(scope="session")
def pbs(slurm: SlurmSpec, slurm_cluster: Path) -> SlurmSpec:
    if not shutil.which("qsub"):
        pytest.skip("there is no qsub: Debian has it in slurm-wlm-torque")
    changes = {
        "scheduler": "pbs",
        "pbs_mpiexec": MPIEXEC,
        # The wrapper's mpiexec is srun, which else lets the other ranks wait for one that has failed.
        "environment": {"SLURM_KILL_BAD_EXIT": "1"},
    }
    return slurm.model_copy(update=changes)


ENDS = ["raises", "is killed", "is cancelled", "runs too long"]


@pytest.fixture(scope="module", autouse=True)
def ending(pbs: SlurmSpec, record_of: RecordOf, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """A trial for each end, submitted before all other tests, since one takes a minute: the others run beside it."""
    record = record_of([TWO_RANKS | {"training.seed": seed} for seed in range(len(ENDS))])
    sweep = Sweep(SweepFolder(tmp_path_factory.mktemp("ends") / "test-sweep"), record)
    submit_points(sweep, pbs.model_copy(update={"time_limit_minutes": 1}), job=make_job(ENDS))
    return sweep


def test_each_end_has_its_cause(ending: Sweep, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "FORGOTTEN_SECONDS", 10.0)
    folder, record = ending.folder, ending.record
    wait_until(folder, record, lambda states: has_ended(states[0]) and states[2].scheduler_state == "RUNNING")
    cancel_trials(ending, [record.trials[2]])
    raised, killed, cancelled, _ = wait_until(folder, record, lambda states: all(map(has_ended, states[:3])), 180)
    assert (raised.outcome, raised.failing_rank, raised.cause) == (
        Outcome.FAILED,
        1,
        "ValueError: the data of rank 1 is bad",
    )
    assert (killed.outcome, killed.failing_rank) == (Outcome.FAILED, 1), killed.cause
    assert cancelled.outcome is Outcome.CANCELLED, cancelled.cause


def test_a_trial_trains_on_two_nodes(
    folder: SweepFolder, record_of: RecordOf, pbs: SlurmSpec, wait_until: WaitUntil
) -> None:
    sweep = Sweep(folder, record_of([ON_TWO_NODES]))
    submit_points(sweep, pbs)
    (done,) = wait_until(folder, sweep.record, lambda states: has_ended(states[0]), 180)
    assert done.outcome is Outcome.COMPLETED, done.cause
    again = submit_points(sweep, pbs)
    assert (again.num_submitted, len(again.kept)) == (0, 1)


def test_a_job_that_waits_is_cancelled_with_its_sweep(
    folder: SweepFolder, record_of: RecordOf, pbs: SlurmSpec, wait_until: WaitUntil
) -> None:
    sweep = Sweep(folder, record_of([TWO_RANKS]))
    submit_points(sweep, pbs.model_copy(update={"extra_sbatch": {"h": True}}))
    (waiting,) = wait_until(folder, sweep.record, lambda states: states[0].scheduler_state == "PENDING")
    assert waiting.outcome is Outcome.PENDING
    assert cancel_sweep(sweep) == 1
    (ended,) = wait_until(folder, sweep.record, lambda states: has_ended(states[0]))
    assert ended.outcome is Outcome.CANCELLED, ended.cause


@pytest.mark.thorough  # than test_other_trainer
def test_other_programs_are_measured_however_they_are_started(
    tmp_path: Path, folder: SweepFolder, record_of: RecordOf, pbs: SlurmSpec, wait_until: WaitUntil
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = f"trainer.command=[{sys.executable},{program},'{{trainer.start}}','{{training.deterministic}}']"
    four: dict[str, Value] = {"parallel.world_size": 4}
    points: list[dict[str, Value]] = [four | {"trainer.start": start} for start in ("torchrun", "srun", "once")]
    record = record_of(points, "trainer=command", command, "training.num_warmup_steps=1")
    without = shlex.join(["env", *(f"--unset={name}" for name in OF_SLURM)])
    submit_points(Sweep(folder, record), pbs.model_copy(update={"pbs_mpiexec": f"{MPIEXEC} {without}"}))
    states = wait_until(folder, record, lambda states: all(map(has_ended, states)), 300)
    assert [state.outcome for state in states] == [Outcome.COMPLETED] * 3, states
    assert [len(state.steps) for state in states] == [3, 3, 3]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("pbs")
def test_a_controller_hands_the_sweep_to_its_successor_when_its_time_is_over(tmp_path: Path) -> None:
    of_pbs = ("slurm.scheduler=pbs", f"slurm.pbs_mpiexec='{MPIEXEC}'")
    started = run_forked(("sweep", *adaptive(tmp_path), *of_pbs, "controller=slurm"), tmp_path, os.environ, umask=0o077)
    assert started.returncode == 0, started.stderr
    folder = SweepFolder(tmp_path / "runs" / "smoke-local")
    first = live_job(folder.controller)
    assert first is not None
    wait_for(lambda: History.kept_in(folder).courses, 200)  # the first trial has been submitted
    # As the script's `timeout` does, some minutes before the walltime.
    controllers = [each for each in psutil.process_iter(["cmdline"]) if _is_controller(each, tmp_path)]
    # A command that the controller starts has the controller's words until it becomes a program of its own.
    min(controllers, key=psutil.Process.create_time).send_signal(signal.SIGUSR2)
    wait_for(lambda: (second := live_job(folder.controller)) is not None and second.job_id != first.job_id, 200)
    wait_for(lambda: History.kept_in(folder).finished is not None, 300)
    assert [course.num_attempts for course in History.kept_in(folder).courses.values()] == [1, 1]
    wait_for(lambda: live_job(folder.controller) is None)  # it writes the report
    assert (folder.path / "report.md").exists()


def test_a_job_at_its_walltime_is_timed_out(
    ending: Sweep, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "FORGOTTEN_SECONDS", 10.0)
    late = wait_until(ending.folder, ending.record, lambda states: has_ended(states[3]), 180)[3]
    assert late.outcome is Outcome.TIMED_OUT, late.cause


def _is_controller(process: psutil.Process, place: Path) -> bool:
    words = process.info["cmdline"] or []
    of_the_place = any(word.startswith(str(place)) and "-controller-" in word for word in words)
    return "launcher.slurm.task" in words and "timeout" not in words and of_the_place
