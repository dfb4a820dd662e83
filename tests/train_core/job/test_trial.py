"""How trials end: completed, killed, raising, out of memory, out of time, cancelled; with real processes."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conf.errors import UsageError
from conf.plan.experiment import Experiment
from rates.device import run_from_launcher
from tests.train_core.conftest import TrialOf
from tests.waiting import wait_for
from train_core.data.tokens import prepare
from train_core.job.failures import failed_measurement
from train_core.job.supervisor import Job, Ranks, _meeting_folder
from train_core.job.trial import run_trial_as_rank, run_trial_here
from train_core.process.lock import NO_LOCKS, hold_lock
from train_core.process.world import World
from train_core.training.train import train
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Outcome, RankFailure, StepMetrics

TENSOR_2 = {"parallel.world_size": 2, "parallel.tensor_parallel_size": 2, "training.num_steps": 3}
FOUR_RANKS = TENSOR_2 | {"parallel.world_size": 4, "parallel.pipeline_parallel_size": 2}
LONG = {"training.num_steps": 100_000}


@pytest.fixture
def on_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], None]:
    """Have one rank do something after its second step; ranks are forked, so they inherit the patch."""

    def arrange(rank: int, act: Callable[[], None]) -> None:
        def disturbed(experiment: Experiment, world: World, cache_dir: Path, *rest: Any) -> Any:
            from train_core.training.trainer import Trainer

            trainer = Trainer(experiment, world, cache_dir)
            trainer.step(1)
            if world.rank == rank:
                act()
            return train(experiment, world, cache_dir, *rest)

        monkeypatch.setattr("train_core.job.rank.train", disturbed)

    return arrange


@pytest.mark.slow
def test_a_completed_trial_leaves_a_whole_measurement(trial_of: TrialOf) -> None:
    trial, seen = trial_of(FOUR_RANKS), list[StepMetrics]()
    measurement = run_trial_here(trial.path, on_step=seen.append)
    assert measurement.outcome is Outcome.COMPLETED, measurement.cause
    assert trial.read_measurement() == measurement
    assert [metrics.step for metrics in seen] == [1, 2, 3]
    assert trial.read_metrics() == seen
    performance = measurement.performance
    assert performance is not None
    assert performance.losses == tuple(metrics.loss for metrics in seen)
    assert len(performance.peak_memory_bytes) == 4
    assert min(performance.peak_memory_bytes) > 50 * 2**20
    assert performance.num_devices == min(4, len(os.sched_getaffinity(0)))
    assert performance.peak_source == "measured"
    assert 0 < performance.model_flops_utilization < 1
    assert performance.step_seconds_min <= performance.step_seconds <= performance.step_seconds_max
    assert performance.num_timed_steps == 2
    assert measurement.environment is not None
    assert measurement.environment.backend == "gloo"
    assert (trial.path.parents[1] / "tokens").is_dir()
    recorded = trial.read_timeline()  # by the first tensor rank of each stage, for all of it
    assert [(stage.stage, stage.rank) for stage in recorded] == [(0, 0), (1, 2)]
    assert all(stage.step_seconds in [metrics.step_seconds for metrics in seen] for stage in recorded)
    assert all(stage.seconds.communication > 0 for stage in recorded)


@pytest.mark.slow
def test_a_raising_rank_ends_the_job_at_once_with_its_own_traceback(trial_of: TrialOf, on_rank: Any) -> None:
    def raise_error() -> None:
        raise LookupError("a cosmic ray")

    on_rank(2, raise_error)
    measurement = run_trial_here(trial_of(FOUR_RANKS | LONG).path)
    assert measurement.outcome is Outcome.FAILED
    assert measurement.failing_rank == 2
    assert measurement.cause == "LookupError: a cosmic ray"
    assert "in raise_error" in (measurement.traceback or "")
    assert measurement.performance is None


@pytest.mark.slow
def test_a_killed_rank_is_the_cause_and_not_the_peers_that_lost_it(trial_of: TrialOf, on_rank: Any) -> None:
    on_rank(1, lambda: os.kill(os.getpid(), signal.SIGKILL))
    measurement = run_trial_here(trial_of(FOUR_RANKS | LONG).path)
    assert measurement.outcome is Outcome.FAILED
    assert measurement.failing_rank == 1
    assert measurement.cause == "rank 1 was killed by SIGKILL"


@pytest.mark.slow
def test_a_rank_that_exits_without_a_word_is_named(trial_of: TrialOf, on_rank: Any) -> None:
    def leave() -> None:
        os.write(2, b"the disk is on fire\n")
        os._exit(7)

    on_rank(0, leave)
    measurement = run_trial_here(trial_of(TENSOR_2 | LONG).path)
    assert measurement.failing_rank == 0
    assert "exited with code 7" in measurement.cause
    assert measurement.traceback == "the disk is on fire"


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["parallel.pipeline_parallel_size", "parallel.tensor_parallel_size", "data"])
def test_a_rank_that_ends_early_with_code_0_is_the_cause_and_not_its_peer(
    trial_of: TrialOf, on_rank: Any, axis: str
) -> None:
    on_rank(1, lambda: os._exit(0))
    values = LONG | {"parallel.world_size": 2} | ({} if axis == "data" else {axis: 2})
    measurement = run_trial_here(trial_of(values).path)
    assert measurement.outcome is Outcome.FAILED
    assert (measurement.failing_rank, measurement.cause) == (1, "rank 1 exited with code 0 before the training ended")


@pytest.mark.slow
def test_a_tensor_that_no_memory_holds_is_out_of_memory(trial_of: TrialOf, on_rank: Any) -> None:
    on_rank(1, lambda: torch.empty(2**50).fill_(1))
    measurement = run_trial_here(trial_of(TENSOR_2 | LONG).path)
    assert measurement.outcome is Outcome.OUT_OF_MEMORY, measurement.cause
    assert measurement.failing_rank == 1


@pytest.mark.slow
def test_an_address_space_limit_is_out_of_memory(trial_of: TrialOf, on_rank: Any) -> None:
    def fill_memory() -> None:
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + 2**29, in_use + 2**29))
        kept = []
        while True:
            kept.append(bytearray(2**26))

    on_rank(0, fill_memory)
    measurement = run_trial_here(trial_of(TENSOR_2 | LONG).path)
    assert measurement.outcome is Outcome.OUT_OF_MEMORY, measurement.cause
    assert measurement.failing_rank == 0


@pytest.mark.slow
def test_over_the_time_limit_is_timed_out(trial_of: TrialOf) -> None:
    trial = trial_of(TENSOR_2 | LONG)
    started = time.monotonic()
    measurement = run_trial_here(trial.path, time_limit_seconds=2.5)
    assert measurement.outcome is Outcome.TIMED_OUT
    assert "2.5 s" in measurement.cause
    assert 2.4 < time.monotonic() - started < 60


def test_a_wrong_data_path_is_one_message(trial_of: TrialOf) -> None:
    measurement = run_trial_here(trial_of(TENSOR_2 | {"data.path": "/nowhere"}).path)
    assert measurement.outcome is Outcome.FAILED
    assert measurement.cause.startswith("data.path = '/nowhere': does not exist")
    assert measurement.failing_rank is None


def test_a_folder_that_takes_no_tokens_is_one_message(trial_of: TrialOf) -> None:
    measurement = run_trial_here(trial_of(TENSOR_2 | {"data.cache_dir": "/proc/nowhere"}).path)
    assert measurement.outcome is Outcome.FAILED
    assert measurement.cause.startswith("data.cache_dir = '/proc/nowhere': ")


@pytest.mark.slow
def test_a_trial_that_is_running_is_refused(trial_of: TrialOf) -> None:
    trial = trial_of(TENSOR_2)
    with hold_lock(trial.running_lock), pytest.raises(UsageError, match="Another process is running the trial"):
        run_trial_here(trial.path)


@pytest.mark.slow
def test_a_rank_of_a_launcher_neither_starts_a_trial_that_runs_nor_lets_another_start(
    trial_of: TrialOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second start would delete the checkpoint that the first is just writing."""
    trial = trial_of({})
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    with hold_lock(trial.running_lock), pytest.raises(UsageError, match="Another process is running the trial"):
        run_trial_as_rank(trial.path)
    assert not trial.failures.exists()
    seen = list[bool]()
    run_trial_as_rank(trial.path, on_step=lambda _: seen.append(trial.is_running_here()))
    assert set(seen) == {True}
    assert not trial.is_running_here()


@pytest.mark.parametrize("number", NO_LOCKS)
def test_a_file_system_that_knows_no_locks_keeps_nobody_out(
    number: int, trial_of: TrialOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    trial = trial_of({"data.max_bytes": 1000})
    monkeypatch.setattr(fcntl, "flock", refuse)
    with hold_lock(trial.running_lock):
        assert not trial.is_running_here()
    assert prepare(trial.read_experiment(), trial.tokens) is not None
    megatron = {"data.source": "megatron", "data.path": str(Path(__file__).parents[1] / "data" / "megatron" / "int32")}
    assert prepare(trial_of(megatron).read_experiment(), trial.tokens) is not None


@pytest.mark.thorough  # than slurm/test_chaos
@pytest.mark.slow
def test_an_earlier_attempt_leaves_no_trace(trial_of: TrialOf, on_rank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    on_rank(0, lambda: os._exit(3))
    trial = trial_of(TENSOR_2)
    assert run_trial_here(trial.path).outcome is Outcome.FAILED
    monkeypatch.undo()
    assert run_trial_here(trial.path).outcome is Outcome.COMPLETED
    assert trial.read_failures() == []
    assert [metrics.step for metrics in trial.read_metrics()] == [1, 2, 3]


def started_alone(trial: TrialFolder) -> subprocess.Popen[bytes]:
    code = f"from pathlib import Path; from train_core.job.trial import *; run_trial_here(Path({str(trial.path)!r}))"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[3])
    wait_for(lambda: len(trial.read_metrics()) >= 1)
    return process


def ranks_of(process: subprocess.Popen[bytes]) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(child) for child in children]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def is_free(trial: TrialFolder) -> bool:
    try:
        with hold_lock(trial.running_lock):
            return True
    except UsageError:
        return False


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_cancelled_supervisor_ends_its_ranks_and_writes_nothing(trial_of: TrialOf, number: signal.Signals) -> None:
    trial = trial_of(TENSOR_2 | LONG)
    process = started_alone(trial)
    ranks = ranks_of(process)
    assert len(ranks) == 2
    process.send_signal(number)
    assert process.wait(90) != 0
    assert not any(is_running(rank) for rank in ranks)
    assert not trial.measurement.exists()
    assert is_free(trial)


@pytest.mark.slow
def test_ranks_die_with_their_supervisor(trial_of: TrialOf) -> None:
    trial = trial_of(TENSOR_2 | LONG)
    process = started_alone(trial)
    ranks = ranks_of(process)
    process.kill()
    process.wait()
    wait_for(lambda: not any(is_running(rank) for rank in ranks), 10)
    wait_for(lambda: is_free(trial), 10)
    with _meeting_folder(trial) as meeting:
        left = [path.name for path in Path(meeting).parent.glob(f"{Path(meeting).name[:-8]}*")]
        assert left == [Path(meeting).name], "the next start deletes what the killed one left in the temporary folder"


ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def be_a_rank(start: Callable[[Path], object], trial: Path, said: Path) -> None:
    sys.stdout, sys.stderr = (said / "stdout").open("w"), (said / "stderr").open("w")
    os.environ.update(ALONE)
    start(trial)


@pytest.mark.parametrize(
    ("start", "error", "code", "cause"),
    [
        (run_trial_as_rank, LookupError("a cosmic ray"), 1, "LookupError: a cosmic ray"),
        (run_trial_as_rank, UsageError("it is so", "Do that."), 2, "it is so. Do that."),
        (run_trial_as_rank, KeyboardInterrupt(), 130, "KeyboardInterrupt: "),
        (run_from_launcher, LookupError("a ray"), 1, "LookupError: a ray"),
    ],
)
def test_a_rank_that_fails_ends_at_once_whatever_its_threads_do(
    start: Callable[[Path], object],
    error: BaseException,
    code: int,
    cause: str,
    trial_of: TrialOf,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A normal exit waits for the thread."""
    begun = threading.Event()

    def fail(*_: object) -> None:
        ThreadPoolExecutor(1, initializer=begun.set).submit(time.sleep, 600)
        begun.wait()
        print("its last line", end="")
        raise error

    monkeypatch.setattr("train_core.job.rank.train", fail)
    monkeypatch.setattr("rates.device.RatesFolder.read_plan", fail)
    trial = trial_of({})
    process = get_context("fork").Process(target=be_a_rank, args=(start, trial.path, tmp_path))
    process.start()
    process.join(60)
    try:
        assert process.exitcode == code, (tmp_path / "stderr").read_text()
    finally:
        process.kill()
    assert (tmp_path / "stdout").read_text() == "its last line"
    assert "in fail\n" in (tmp_path / "stderr").read_text()
    assert [failure.cause for failure in trial.read_failures()] == [cause]


@pytest.mark.slow
def test_a_rank_prints_its_failure_though_its_folder_takes_no_word(
    trial_of: TrialOf, on_rank: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        trial.failures.write_text("in the way")
        raise LookupError("a cosmic ray")

    trial = trial_of(TENSOR_2 | LONG)
    on_rank(1, fail)
    measurement = run_trial_here(trial.path)
    assert measurement.cause == "LookupError: a cosmic ray", "it reaches the supervisor by another way"
    assert "LookupError: a cosmic ray" in capfd.readouterr().err


def test_another_number_of_ranks_than_the_plan_has_is_refused(
    trial_of: TrialOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    seat = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in seat.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="1 rank was started, and the plan has 2"):
        run_trial_as_rank(trial_of(TENSOR_2).path)


class DyingProcess:
    """A rank that is alive when first asked and dead, killed, whenever asked again."""

    def __init__(self) -> None:
        self.times_asked = 0
        self.sentinel = os.open(os.devnull, os.O_RDONLY)  # ready at once, as a dead process's is

    @property
    def exitcode(self) -> int | None:
        self.times_asked += 1
        return None if self.times_asked == 1 else -signal.SIGKILL


def test_a_rank_that_dies_while_the_others_are_counted_is_not_overlooked(trial_of: TrialOf, tmp_path: Path) -> None:
    """Found as a hang: the supervisor waited for the survivors, who waited for the dead."""
    ranks = Ranks(Job(trial_of(TENSOR_2), 2, None, None, None), tmp_path / "meeting")
    reader, writer = os.pipe()  # a survivor that never ends
    survivor = SimpleNamespace(exitcode=None, sentinel=reader)
    ranks._processes = [DyingProcess(), survivor]  # type: ignore[list-item]
    start = time.monotonic()
    try:
        assert ranks.watch(start + 20) is Outcome.FAILED
        assert time.monotonic() - start < 10
    finally:
        os.close(reader)
        os.close(writer)


def test_a_verdict_does_not_replace_what_the_trial_said_itself(trial_of: TrialOf) -> None:
    """The observer may look at an old state of a network file system."""
    trial = trial_of(TENSOR_2)
    said, concluded = (
        failed_measurement("abc", RankFailure(rank=0, outcome=Outcome.FAILED, cause=cause, traceback="", time=1.0), 0.0)
        for cause in ("its own word", "concluded")
    )
    trial.write_measurement(said)
    trial.write_verdict(concluded)
    assert trial.read_measurement() == said
    trial.measurement.unlink()
    trial.write_verdict(concluded)
    assert trial.read_measurement() == concluded
    assert [path.name for path in trial.path.iterdir()] == ["trial.json", "measurement.json"]


def test_a_verdict_does_not_wait_for_the_disk_as_a_measurement_does(
    trial_of: TrialOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, waits = trial_of(TENSOR_2), list[int]()
    monkeypatch.setattr(os, "fsync", waits.append)
    failure = RankFailure(rank=0, outcome=Outcome.FAILED, cause="concluded", traceback="", time=1.0)
    trial.write_verdict(failed_measurement("abc", failure, 0.0))
    assert waits == []
    trial.write_result(failed_measurement("abc", failure, 0.0))
    assert len(waits) == 1


def test_a_lock_that_is_only_tried_does_not_refuse_a_starting_trial(tmp_path: Path) -> None:
    """Whoever asks whether a trial runs tries its lock; a supervisor that comes at that moment waits."""
    lock = tmp_path / "running.lock"
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    threading.Timer(0.2, os.close, [descriptor]).start()
    with hold_lock(lock):
        pass


def test_a_wrong_number_of_ranks_leaves_an_earlier_result_alone(
    trial_of: TrialOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_of(TENSOR_2)
    trial.measurement.write_text("earlier")
    seat = {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in seat.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="3 ranks were started, and the plan has 2"):
        run_trial_as_rank(trial.path)
    assert trial.measurement.read_text() == "earlier"
    assert not trial.failures.exists()


def test_a_job_that_is_started_once_more_keeps_the_measurement_it_left(
    trial_of: TrialOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_of({})
    silent = RankFailure(rank=0, outcome=Outcome.COMPLETED, cause="", traceback="", time=1.0)
    completed = failed_measurement(trial.read_experiment().fingerprint, silent, 0.0)
    trial.write_measurement(completed)
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    assert run_trial_as_rank(trial.path) == completed
    assert [path.name for path in trial.path.iterdir()] == ["trial.json", "measurement.json"]


OUTLIVED = """
import sys
from pathlib import Path
from train_core.trial.folder import Attempt
from train_core.job.trial import run_trial_as_rank

folder = Path(sys.argv[1])
begin = lambda metrics: (folder / "attempt").write_text("1.1") if metrics.step == 2 else None
run_trial_as_rank(folder, begin, Attempt(1, 0))
"""


@pytest.mark.slow
def test_a_rank_that_outlived_its_job_stops_where_the_next_attempt_begins(trial_of: TrialOf) -> None:
    trial = trial_of(LONG | {"checkpoint.every_steps": 2})
    command = [sys.executable, "-c", OUTLIVED, str(trial.path)]
    environment = {**os.environ, **ALONE, "PYTHONPATH": str(Path(__file__).parents[3])}
    with hold_lock(
        trial.running_lock
    ):  # as a rank of the run before may still do: an attempt of Slurm's comes all the same
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "attempt 1.0 is over: attempt 1.1 works in" in ended.stderr
    assert [metrics.step for metrics in trial.read_metrics()] == [1, 2]
    assert trial.read_failures() == []
    assert not trial.measurement.exists()
    assert not list(trial.checkpoints.glob("step-*")), "the step after which the next attempt began was to be saved"
