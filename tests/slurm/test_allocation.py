"""An allocation of the test cluster in which trials run as steps."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from conf.control import LauncherSpec
from conf.schema import Frozen, Value
from conf.sites import SlurmSpec
from launcher.allocation_job import submit_allocation
from launcher.folder_lock import holder
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, SweepRecord
from tests.conftest import BuildRecord
from tests.slurm.conftest import WaitUntil, has_ended
from train_core.measurement import Outcome

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("cluster")]

EIGHT_GPU_NODES = ("cluster=frontier", "cluster.num_nodes=4", "batch.global_batch_size=16")


class Seen(Frozen):
    """What a rank saw of its place."""

    host: str
    gpus: str
    began: float
    ended: float


def make_job() -> Callable[[str], None]:
    """A job that looks around for as many milliseconds as its seed, and fails where that is odd.

    It travels by value, as nodes know no tests.
    """

    def job(folder: str) -> None:
        import json
        import os
        import socket
        import time

        from train_core.job.failures import without_numbers
        from train_core.measurement import Outcome
        from train_core.trial_folder import TrialFolder

        trial, began, rank = TrialFolder(folder), time.time(), os.environ["SLURM_PROCID"]
        milliseconds = trial.read_experiment().training.seed
        if milliseconds % 2:
            os._exit(7)
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
    folder: SweepFolder, record: SweepRecord, slurm: SlurmSpec, num_nodes: int, seconds: float = 600.0
) -> str:
    """Submit an allocation that ends its trials after so many seconds, and return its id."""
    minutes = math.ceil(seconds / 60)
    launcher = LauncherSpec(kind="allocation", num_nodes=num_nodes, time_limit_minutes=minutes)
    return submit_allocation(Sweep(folder, record), slurm, launcher, make_job(), 60 * minutes - seconds)


def have_ended(states: Sequence[TrialReading]) -> bool:
    return all(map(has_ended, states))


def test_trials_share_an_allocation_and_no_device_and_one_that_fails_fails_alone(
    folder: SweepFolder, build_record: BuildRecord, slurm: SlurmSpec, wait_until: WaitUntil
) -> None:
    record = build_record(points((16, 100), (2, 2000), (2, 2002), (4, 1), (1, 100)), EIGHT_GPU_NODES)
    submitted(folder, record, slurm, num_nodes=2)
    wide, *others = wait_until(folder, record, have_ended, 60)
    assert [each.outcome for each in others] == [
        *(Outcome.COMPLETED, Outcome.COMPLETED, Outcome.FAILED, Outcome.COMPLETED)
    ]
    assert "exit code 7" in others[2].cause
    assert sorted(each.host for each in seen_by(wide)) == 8 * ["node1"] + 8 * ["node2"]
    first, second = seen_by(others[0])[0], seen_by(others[1])[0]
    assert first.host == second.host
    assert max(first.began, second.began) < min(first.ended, second.ended)
    assert not set(first.gpus.split(",")) & set(second.gpus.split(","))


def test_after_the_death_of_its_controller_the_next_allocation_goes_on(
    folder: SweepFolder, build_record: BuildRecord, slurm: SlurmSpec, wait_until: WaitUntil
) -> None:
    record = build_record(points((1, 100), (1, 60_000)), EIGHT_GPU_NODES)
    submitted(folder, record, slurm, num_nodes=1)
    wait_until(folder, record, lambda states: has_ended(states[0]) and states[1].submission is not None, 30)
    controller = holder(folder)
    assert controller is not None
    os.kill(controller.pid, signal.SIGKILL)
    _, interrupted = wait_until(folder, record, have_ended, 30)
    assert interrupted.outcome is Outcome.PREEMPTED
    (interrupted.folder.path / "go").touch()
    submitted(folder, record, slurm, num_nodes=1)
    done, again = wait_until(folder, record, lambda states: states[1].outcome is Outcome.COMPLETED, 30)
    assert (done.submission, again.submission) != (None, None)
    assert done.submission.attempt == 1 if done.submission else False
    assert again.submission.attempt == 2 if again.submission else False


def test_an_allocation_whose_time_is_over_ends_its_trials_and_runs_again_for_them(
    folder: SweepFolder, build_record: BuildRecord, slurm: SlurmSpec, wait_until: WaitUntil
) -> None:
    record = build_record(points((1, 100), (1, 60_000)), EIGHT_GPU_NODES)
    job_id = submitted(folder, record, slurm, num_nodes=1, seconds=6)
    _, ended = wait_until(folder, record, have_ended, 30)
    assert (ended.outcome, ended.cause) == (
        Outcome.PREEMPTED,
        "the allocation in which it ran came to its time limit",
    )
    (ended.folder.path / "go").touch()
    _, again = wait_until(folder, record, lambda states: states[1].outcome is Outcome.COMPLETED, 40)
    assert again.submission is not None
    assert again.submission.inside is not None
    assert again.submission.inside.job_id == job_id
