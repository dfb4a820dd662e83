"""An allocation of the test cluster in which trials run as steps."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.chaos.cluster import Cluster
from conf.compose.settings import LauncherSpec
from conf.types.schema import Frozen, Value
from conf.types.sites import SlurmSpec
from launcher.allocation.nodes import own_allocation
from launcher.allocation.sweep import submit_allocation
from launcher.allocation.workplace import ORDINARY_TIMES, AllocationTimes
from launcher.control.orders import SweepCommand
from launcher.folder_lock import holder, lock_folder
from launcher.slurm.job_status import live_job
from launcher.sweep import slurm_rules
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, SweepRecord
from tests.composed import load
from tests.conftest import BuildRecord
from tests.slurm.conftest import WaitUntil, has_ended
from tests.waiting import wait_for
from train_core.trial.measurement import Outcome

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("slurm_cluster")]

STATE_SAVED_SECONDS = 8
"""After so long slurmctld has written down what it has started."""

GPU_NODES = ("cluster=frontier", "cluster.devices_per_node=2", "cluster.num_nodes=4", "batch.global_batch_size=16")


class Seen(Frozen):
    """What a rank saw of its place."""

    host: str
    gpus: str
    began: float
    ended: float


def make_job() -> Callable[[str], None]:
    """A job that looks around until its trial's folder holds `go`, at most as many milliseconds as its seed.

    It fails where that is odd. It travels by value, as nodes know no tests.
    """

    def job(folder: str) -> None:
        import json
        import os
        import socket
        import time

        from train_core.job.failures import without_numbers
        from train_core.trial.folder import TrialFolder
        from train_core.trial.measurement import Outcome

        trial, began, rank = TrialFolder(folder), time.time(), os.environ["SLURM_PROCID"]
        milliseconds = trial.read_experiment().training.seed
        if milliseconds % 2:
            os._exit(7)
        Path(folder, "began").touch()
        end = time.monotonic() + milliseconds / 1000
        while time.monotonic() < end and not Path(folder, "go").exists():
            time.sleep(0.05)
        seen = {"host": socket.gethostname(), "gpus": os.environ["CUDA_VISIBLE_DEVICES"]}
        Path(folder, f"seen-{rank}.json").write_text(json.dumps({**seen, "began": began, "ended": time.time()}))
        if rank == "0":
            fingerprint = trial.read_experiment().fingerprint
            trial.write_measurement(without_numbers(fingerprint, Outcome.COMPLETED, "", began))

    return job


def seen_by(reading: TrialReading) -> list[Seen]:
    return [Seen.model_validate_json(path.read_text()) for path in reading.folder.path.glob("seen-*.json")]


def points(*trials: tuple[int, int]) -> list[dict[str, Value]]:
    return [{"parallel.world_size": size, "training.seed": milliseconds} for size, milliseconds in trials]


def submitted(
    folder: SweepFolder,
    record: SweepRecord,
    slurm: SlurmSpec,
    num_nodes: int,
    seconds: float = 600.0,
    times: AllocationTimes = ORDINARY_TIMES,
) -> str:
    """Submit an allocation that ends its trials after so many seconds, and return its id."""
    minutes = math.ceil(seconds / 60)
    launcher = LauncherSpec(kind="allocation", num_nodes=num_nodes, time_limit_minutes=minutes)
    job_id, step = submit_allocation(
        SweepCommand(Sweep(folder, record), slurm_rules(slurm)),
        slurm,
        launcher,
        load(GPU_NODES).cluster,
        job=make_job(),
        times=replace(times, closing_seconds=60 * minutes - seconds),
    )
    assert step is not None  # none of an allocation that lives
    assert job_id is not None
    return job_id


def have_ended(states: Sequence[TrialReading]) -> bool:
    return all(map(has_ended, states))


def test_trials_share_an_allocation_but_no_device_and_one_that_its_end_interrupts_runs_when_it_is_started_again(
    folder: SweepFolder, build_record: BuildRecord, slurm: SlurmSpec, wait_until: WaitUntil
) -> None:
    record = build_record(points((4, 100), (1, 60_000), (1, 60_002), (1, 1), (1, 60_004)), GPU_NODES)
    job_id = submitted(folder, record, slurm, num_nodes=2, seconds=25)
    wait_until(folder, record, let_go_together(1, 2), 200)
    # A slow machine may come to more than one end before the short trials are through.
    *short, failed, long = wait_until(folder, record, only_the_last_is_left, 200)
    assert [each.outcome for each in short] == 3 * [Outcome.COMPLETED]
    wide, one, other = short
    assert sorted(Counter(each.host for each in seen_by(wide)).values()) == [2, 2]
    assert are_side_by_side(seen_by(one)[0], seen_by(other)[0])
    assert failed.outcome is Outcome.FAILED
    assert "exit code 7" in failed.cause
    assert (long.outcome, long.cause) == (
        Outcome.PREEMPTED,
        "the allocation in which it ran came to its time limit",
    )
    (long.folder.path / "go").touch()
    *_, again = wait_until(folder, record, lambda states: states[-1].outcome is Outcome.COMPLETED, 200)
    assert again.submission is not None
    assert again.submission.inside is not None
    # The first attempt was interrupted. The allocation may have started and ended once more before this looked.
    assert (again.submission.inside.job_id, again.submission.attempt > 1) == (job_id, True)


def let_go_together(*indices: int) -> Callable[[list[TrialReading]], bool]:
    """Let trials end once all of them run, so that they have run side by side however slow the machine is."""

    def reached(states: list[TrialReading]) -> bool:
        trials = [states[index] for index in indices]
        if not all(map(has_begun, trials)):
            return False
        for trial in trials:
            (trial.folder.path / "go").touch()
        return True

    return reached


def has_begun(reading: TrialReading) -> bool:
    """Whether its job runs; what an earlier attempt left does not count."""
    began = reading.folder.path / "began"
    return reading.submission is not None and began.exists() and began.stat().st_mtime > reading.submission.submitted


def only_the_last_is_left(states: list[TrialReading]) -> bool:
    *others, last = states
    return all(has_ended(each) and each.outcome is not Outcome.PREEMPTED for each in others) and (
        last.outcome is Outcome.PREEMPTED
    )


def are_side_by_side(one: Seen, other: Seen) -> bool:
    """At the same time on the same node, and on no device in common."""
    together = max(one.began, other.began) < min(one.ended, other.ended)
    return together and one.host == other.host and not set(one.gpus.split(",")) & set(other.gpus.split(","))


@pytest.mark.thorough  # than test_after_the_loss_of_a_node_every_trial_ends_elsewhere
def test_after_the_death_of_its_controller_the_next_allocation_goes_on(
    folder: SweepFolder, build_record: BuildRecord, slurm: SlurmSpec, wait_until: WaitUntil
) -> None:
    record = build_record(points((1, 100), (1, 60_000)), GPU_NODES)
    submitted(folder, record, slurm, num_nodes=1)
    wait_until(folder, record, lambda states: has_ended(states[0]) and states[1].submission is not None)
    controller = holder(folder)
    assert controller is not None
    os.kill(controller.pid, signal.SIGKILL)
    _, interrupted = wait_until(folder, record, have_ended)
    assert interrupted.outcome is Outcome.PREEMPTED
    (interrupted.folder.path / "go").touch()
    submitted(folder, record, slurm, num_nodes=1)
    both = wait_until(folder, record, lambda states: states[1].outcome is Outcome.COMPLETED)
    assert [each.submission.attempt for each in both if each.submission] == [1, 2]


@pytest.fixture
def mended(slurm_cluster: Path) -> Iterator[None]:
    """Nodes that the test set down come back, and daemons that it killed are started."""
    yield
    Cluster(slurm_cluster).restore()


@pytest.mark.usefixtures("mended")
def test_after_the_loss_of_a_node_every_trial_ends_elsewhere(
    folder: SweepFolder, build_record: BuildRecord, slurm: SlurmSpec, wait_until: WaitUntil
) -> None:
    """No trial waits for a step that Slurm does not make, and none is started on the node that was lost."""
    record = build_record(points(*((2, 60_000 + 2 * number) for number in range(5))), GPU_NODES)
    job_id = submitted(folder, record, slurm, num_nodes=3, times=AllocationTimes(step_seconds=5))
    wait_until(folder, record, lambda states: sum(map(has_begun, states)) == 3)
    lost = nodes_of(job_id)[1]  # the first runs the controller
    subprocess.run(["scontrol", "update", f"nodename={lost}", "state=down", "reason=test"], check=True)
    # On a busy machine the trial there would else be let go, and complete, before Slurm has ended it.
    wait_until(folder, record, lambda states: any(each.outcome is Outcome.NODE_FAILED for each in states))
    ended = wait_until(folder, record, let_all_go, 200)
    assert {each.outcome for each in ended} == {Outcome.COMPLETED}
    attempts = [each.submission.attempt for each in ended if each.submission]
    assert sorted(attempts) == [1, 1, 1, 1, 2]


@pytest.mark.usefixtures("mended")
def test_what_slurm_makes_no_step_for_after_its_restart_is_no_attempt_of_the_trial(
    folder: SweepFolder, build_record: BuildRecord, slurm: SlurmSpec, wait_until: WaitUntil, slurm_cluster: Path
) -> None:
    """It comes back with the steps that have ended meanwhile, and refuses others the memory that those had."""
    record = build_record(points(*((1, 60_000 + 2 * number) for number in range(9))), GPU_NODES)
    submitted(folder, record, slurm, num_nodes=2, times=AllocationTimes(step_seconds=5))
    running = wait_until(folder, record, lambda states: sum(map(has_begun, states)) == 4)
    time.sleep(STATE_SAVED_SECONDS)
    Cluster(slurm_cluster).kill("slurmctld")
    let_all_go(running)
    wait_for_ends(running)
    Cluster(slurm_cluster).restore()
    ended = wait_until(folder, record, let_all_go, 200)
    assert {each.outcome for each in ended} == {Outcome.COMPLETED}
    assert {each.submission.attempt for each in ended if each.submission} == {1}


def wait_for_ends(readings: Sequence[TrialReading], seconds: float = 20.0) -> None:
    wait_for(lambda: all(not has_begun(each) or each.folder.read_measurement() for each in readings), seconds)
    time.sleep(4)


def nodes_of(job_id: str) -> list[str]:
    return [node.name for node in own_allocation({"SLURM_JOB_ID": job_id}).nodes]


def let_all_go(states: list[TrialReading]) -> bool:
    """Let every trial end at once that runs, until none is left."""
    for each in states:
        if has_begun(each):
            (each.folder.path / "go").touch()
    return all(each.outcome is Outcome.COMPLETED for each in states)


def test_after_scancel_of_an_allocation_only_a_further_command_goes_on(
    folder: SweepFolder, build_record: BuildRecord, slurm: SlurmSpec, wait_until: WaitUntil
) -> None:
    record = build_record(points((1, 60_000), (2, 60_002)), GPU_NODES)
    job_id = submitted(folder, record, slurm, num_nodes=1)
    wait_until(folder, record, lambda states: has_begun(states[0]))
    subprocess.run(["scontrol", "update", f"jobid={job_id}", "jobname=called otherwise"], check=True)
    wait_until(folder, record, lambda states: is_live(folder) and states[0].scheduler_state == "RUNNING", 5)
    subprocess.run(["scancel", job_id], check=True)
    interrupted, waiting = wait_until(folder, record, lambda states: has_ended(states[0]) and not is_live(folder))
    assert interrupted.outcome in (Outcome.PREEMPTED, Outcome.CANCELLED)
    assert waiting.submission is None
    again = submitted(folder, record, slurm, num_nodes=1)
    both = wait_until(folder, record, let_all_go)
    assert {each.submission.inside.job_id for each in both if each.submission and each.submission.inside} == {again}
    assert [each.submission.attempt for each in both if each.submission] == [2, 1]


@pytest.mark.thorough  # than test_after_scancel_of_an_allocation
def test_an_allocation_that_meets_another_command_is_run_again_and_goes_on(
    folder: SweepFolder, build_record: BuildRecord, slurm: SlurmSpec, wait_until: WaitUntil
) -> None:
    record = build_record(points((1, 100)), GPU_NODES)
    job_id = submitted(folder, record, slurm, num_nodes=1, times=AllocationTimes(lock_seconds=1))
    with lock_folder(folder):
        wait_for(lambda: own_restarts(job_id) > 0)
    (done,) = wait_until(folder, record, lambda states: states[0].outcome is Outcome.COMPLETED)
    assert done.submission is not None
    assert done.submission.attempt == 1


def own_restarts(job_id: str) -> int:
    return own_allocation({"SLURM_JOB_ID": job_id}).restarts


def is_live(folder: SweepFolder) -> bool:
    return live_job(folder.allocation) is not None
