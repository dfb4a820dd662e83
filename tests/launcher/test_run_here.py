"""Sweeps on this machine: real processes, through submitit, each test with jobs that end as it needs."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from conf.compose.settings import UNLIMITED_BUDGET
from conf.errors import ConfigError, UsageError
from conf.types.schema import Value
from launcher.control.orders import SweepCommand, SweepOrders
from launcher.control.rules import Budget, Rules
from launcher.folder_lock import lock_folder
from launcher.local.machine import LocalJobFunction, MachineCapacity, is_running_here
from launcher.sweep import run_here
from sweeps.folder.submission import read_submission
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, SweepRecord
from tests.audit import audited
from tests.conftest import RecordOf
from tests.launcher.conftest import Silent
from tests.messages import refused
from tests.waiting import wait_for
from train_core.trial.measurement import Outcome

ROOT = Path(__file__).resolve().parents[2]


def seeds(count: int) -> list[dict[str, Value]]:
    return [{"training.seed": seed} for seed in range(count)]


def make_job(behaviour: str = "complete", seconds: float = 0.0) -> LocalJobFunction:
    """A job that measures like the trainer, or ends otherwise, after `seconds` or once its folder holds `go`.

    Defined inside, so that it travels by value.
    """

    def job(folder: str, devices: tuple[int, ...], time_limit_seconds: float | None) -> None:
        import os
        import signal
        import time
        from pathlib import Path

        from train_core.job.failures import without_numbers
        from train_core.process.lock import hold_lock
        from train_core.trial.folder import TrialFolder
        from train_core.trial.measurement import Outcome

        trial, started = TrialFolder(folder), time.time()
        with hold_lock(trial.running_lock):
            with (trial.path / "runs").open("a") as file:
                file.write(f"{started} {','.join(map(str, devices))}\n")
            until = time.monotonic() + seconds
            while time.monotonic() < until and not Path(folder, "go").exists():
                time.sleep(0.02)
            if behaviour == "raise":
                raise ValueError("this trial is bad")
            if behaviour == "be killed":
                os.kill(os.getpid(), signal.SIGKILL)
            fingerprint = trial.read_experiment().fingerprint
            trial.write_measurement(without_numbers(fingerprint, Outcome.COMPLETED, "", started))
            with (Path(folder) / "ended").open("a") as file:
                file.write(f"{time.time()}\n")

    return job


def command_for(sweep: Sweep, limit_seconds: float, *, retry_failed: bool = False) -> SweepCommand:
    rules = Rules(budget=Budget(UNLIMITED_BUDGET, None, limit_seconds))
    return SweepCommand(sweep, rules, SweepOrders(retry_failed=retry_failed))


def run(
    folder: SweepFolder, record: SweepRecord, progress: Silent, job: LocalJobFunction, retry_failed: bool = False
) -> list[TrialReading]:
    run_here(command_for(Sweep(folder, record), 60.0, retry_failed=retry_failed), progress, job)
    return Sweep.stored_in(folder).read()


def num_runs(folder: SweepFolder, record: SweepRecord) -> list[int]:
    return [
        len(path.read_text().splitlines()) if (path := folder.trial(t.trial_id).path / "runs").exists() else 0
        for t in record.trials
    ]


@pytest.mark.slow
def test_the_real_trainer_completes_and_the_same_call_then_does_nothing(
    folder: SweepFolder, record_of: RecordOf, progress: Silent
) -> None:
    record = record_of([{"parallel.world_size": 2, "parallel.tensor_parallel_size": 2}])
    run_here(command_for(Sweep(folder, record), 120.0), progress)
    states = Sweep.stored_in(folder).read()
    assert [state.outcome for state in states] == [Outcome.COMPLETED], states
    assert states[0].model_flops_per_second_per_device is not None
    assert states[0].model_flops_per_second_per_device > 0
    assert states[0].num_steps_done == states[0].num_steps == 3
    written = folder.trial(record.trials[0].trial_id).measurement.stat().st_mtime_ns
    cache = json.loads(folder.trial(record.trials[0].trial_id).trial.read_text())["experiment"]["data"]["cache_dir"]
    assert cache == str(folder.path.parent / "tokens")

    with audited("subprocess.Popen", "os.fork", "os.posix_spawn", "time.sleep") as events:
        run_here(command_for(Sweep(folder, record), 120.0), progress)
    assert [event for event in events if not event.endswith(" git")] == []
    assert folder.trial(record.trials[0].trial_id).measurement.stat().st_mtime_ns == written


@pytest.mark.slow
def test_a_job_that_raises_or_is_killed_is_failed_with_its_own_last_words(
    folder: SweepFolder, record_of: RecordOf, progress: Silent
) -> None:
    record = record_of(seeds(1))
    (state,) = run(folder, record, progress, make_job("raise"))
    assert state.outcome is Outcome.FAILED
    assert "ValueError: this trial is bad" in (state.traceback or "")
    (state,) = run(folder, record, progress, make_job("be killed"), retry_failed=True)
    assert state.outcome is Outcome.FAILED
    assert "killed" in state.cause
    assert num_runs(folder, record) == [2]


@pytest.mark.slow
def test_trials_never_share_a_core(
    folder: SweepFolder, record_of: RecordOf, progress: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    two: dict[str, Value] = {"parallel.world_size": 2, "parallel.tensor_parallel_size": 2}
    four: dict[str, Value] = {"parallel.world_size": 4, "parallel.tensor_parallel_size": 4}
    record = record_of([*seeds(2), two, four])
    monkeypatch.setattr("launcher.sweep.this_machine", lambda: MachineCapacity(2, 2**40, 0))
    states = run(folder, record, progress, make_job(seconds=0.5))
    assert {state.outcome for state in states} == {Outcome.COMPLETED}
    spans = []
    for trial in record.trials:
        assert trial.experiment is not None
        path = folder.trial(trial.trial_id).path
        start = float((path / "runs").read_text().split()[0])
        spans.append((start, float((path / "ended").read_text()), min(2, trial.experiment.parallel.world_size)))
    for moment, _, _ in spans:
        assert sum(cores for start, end, cores in spans if start <= moment < end) <= 2
    wide = sorted(span for span in spans if span[2] == 2)
    assert all(one[1] <= two[0] for one, two in pairwise(wide))


@pytest.mark.thorough  # than test_trials_never_share_a_core
@pytest.mark.slow
def test_no_two_trials_share_a_device_and_one_that_needs_more_is_infeasible(
    folder: SweepFolder, record_of: RecordOf, progress: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.sweep.this_machine", lambda: MachineCapacity(2, 2**40, 2))
    record = record_of([*seeds(2), {"parallel.world_size": 4, "parallel.tensor_parallel_size": 4}])
    states = run(folder, record, progress, make_job(seconds=0.5))
    assert [state.outcome for state in states] == [Outcome.COMPLETED, Outcome.COMPLETED, Outcome.INFEASIBLE]
    assert states[2].cause == "needs 4 devices, and this machine has 2"
    devices = [(folder.trial(t.trial_id).path / "runs").read_text().split()[1] for t in record.trials[:2]]
    assert sorted(devices) == ["0", "1"]


@pytest.mark.slow
def test_a_trial_larger_than_the_memory_is_infeasible_by_how_much(
    folder: SweepFolder, record_of: RecordOf, progress: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.sweep.this_machine", lambda: MachineCapacity(2, 2**20, 0))
    (state,) = run(folder, record_of(seeds(1)), progress, make_job())
    assert state.outcome is Outcome.INFEASIBLE
    assert "GiB short" in state.cause


@pytest.mark.slow
def test_a_second_sweep_on_the_folder_says_who_has_it_and_starts_nothing(
    folder: SweepFolder, record_of: RecordOf, progress: Silent
) -> None:
    record = record_of(seeds(1))
    with lock_folder(folder), refused(UsageError, os.getpid()):
        run(folder, record, progress, make_job())
    assert not folder.record.exists()
    run(folder, record, progress, make_job())


def test_a_folder_that_cannot_be_made_is_one_message_before_anything_starts(
    tmp_path: Path, record_of: RecordOf, progress: Silent
) -> None:
    (tmp_path / "file").write_text("")
    with refused(ConfigError, "output_dir"):
        run(SweepFolder(tmp_path / "file" / "sweep"), record_of(seeds(1)), progress, make_job())


def test_an_unwritable_folder_is_one_message(tmp_path: Path, record_of: RecordOf, progress: Silent) -> None:
    if os.geteuid() == 0:
        target = Path("/proc/trisweep")  # root may write everywhere but here
    else:
        tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
        target = tmp_path / "sweep"
    with refused(ConfigError, "output_dir"):
        run(SweepFolder(target), record_of(seeds(1)), progress, make_job())


def test_a_full_disk_is_one_message(record_of: RecordOf, progress: Silent, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("this machine does not allow mounts")
    try:
        (disk / "ballast").write_bytes(b"x" * 900_000)
        with refused(ConfigError, "output_dir"):
            run(SweepFolder(disk / "sweep"), record_of(seeds(1)), progress, make_job())
    finally:
        subprocess.run(["umount", disk], check=True)


SWEEP = """
import importlib.util, sys
from pathlib import Path
from typing import Any
from rich.console import Console
from cli.output.progress import PlainProgress
from launcher.sweep import run_here
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
spec = importlib.util.spec_from_file_location("jobs", {jobs!r})
jobs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(jobs)
folder = SweepFolder({folder!r})
job = jobs.make_job(seconds={seconds})
command = jobs.command_for(Sweep.stored_in(folder), 60.0)
run_here(command, PlainProgress(Console()), job)
"""


def start_sweep(folder: SweepFolder, seconds: float) -> subprocess.Popen[bytes]:
    """The sweep as a process of its own, as from a terminal."""
    text = SWEEP.format(jobs=__file__, folder=str(folder.path), seconds=seconds)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def jobs_of(folder: SweepFolder) -> list[psutil.Process]:
    """Processes that still work on the sweep."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder.path) in word for word in process.info["cmdline"] or []) and process.pid != os.getpid()
    ]


@pytest.mark.one_in(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "moment"), [(signal.SIGINT, "while a job starts"), (signal.SIGTERM, "while jobs run")]
)
def test_a_sweep_that_is_interrupted_ends_its_jobs_and_the_same_call_continues(
    folder: SweepFolder, record_of: RecordOf, progress: Silent, number: signal.Signals, moment: str
) -> None:
    record = record_of(seeds(2))
    folder.write_record(record)
    sweep = start_sweep(folder, seconds=60)
    sign = "submission.json" if moment == "while a job starts" else "runs"
    wait_for((folder.trial(record.trials[0].trial_id).path / sign).exists)
    sweep.send_signal(number)
    _, words = sweep.communicate(timeout=90)
    assert sweep.returncode != 0
    assert b"KeyboardInterrupt" in words
    wait_for(lambda: jobs_of(folder) == [], seconds=60.0)  # a process that was told to end takes a moment
    assert [folder.trial(trial.trial_id).measurement.exists() for trial in record.trials] == [False, False]
    assert "interrupted" in Sweep(folder, record).read()[0].cause
    states = run(folder, record, progress, make_job())
    assert [state.outcome for state in states] == [Outcome.COMPLETED] * 2


@pytest.mark.slow
def test_jobs_that_outlive_a_killed_sweep_are_waited_for_and_not_started_twice(
    folder: SweepFolder, record_of: RecordOf
) -> None:
    class LetsItEnd(Silent):
        """Lets the job end only once it has been shown."""

        def show(self, states: Sequence[Any]) -> None:
            super().show(states)
            (states[0].folder.path / "go").touch()

    progress = LetsItEnd()
    record = record_of(seeds(1))
    folder.write_record(record)
    sweep = start_sweep(folder, seconds=50)
    trial = folder.trial(record.trials[0].trial_id)
    wait_for((trial.path / "runs").exists)
    sweep.kill()
    sweep.communicate()
    assert is_running_here(trial, read_submission(trial))
    (state,) = run(folder, record, progress, make_job("raise"))
    assert state.outcome is Outcome.COMPLETED
    assert num_runs(folder, record) == [1]
    assert progress.shown[0][0].outcome is Outcome.RUNNING


@pytest.mark.slow
def test_cancel_ends_a_sweep_that_another_process_runs(folder: SweepFolder, record_of: RecordOf) -> None:
    from launcher.cancel import cancel_sweep

    record = record_of(seeds(1))
    folder.write_record(record)
    sweep = start_sweep(folder, seconds=60)
    wait_for((folder.trial(record.trials[0].trial_id).path / "runs").exists)
    assert cancel_sweep(Sweep(folder, record)) == 1
    sweep.communicate(timeout=90)
    assert jobs_of(folder) == []
    assert not folder.trial(record.trials[0].trial_id).measurement.exists()


@pytest.mark.slow
def test_jobs_run_the_code_as_it_was_when_the_sweep_started(
    folder: SweepFolder, record_of: RecordOf, progress: Silent, tmp_path: Path
) -> None:
    def job(folder: str, devices: tuple[int, ...], time_limit_seconds: float | None) -> None:
        from pathlib import Path

        import conf

        Path(folder, "code").write_text(conf.__file__)

    record = record_of(seeds(1))
    run(folder, record, progress, job)
    used = Path((folder.trial(record.trials[0].trial_id).path / "code").read_text())
    assert used.is_relative_to(folder.code)


def test_a_new_attempt_starts_clean(folder: SweepFolder, record_of: RecordOf) -> None:
    record = record_of(seeds(1))
    trial = folder.trial(record.trials[0].trial_id)
    trial.path.mkdir(parents=True)
    trial.metrics.write_text("left over\n")
    Sweep(folder, record).prepare(record.trials[0])
    assert not trial.metrics.exists()
    assert record.trials[0].experiment is not None
    assert trial.read_experiment().fingerprint == record.trials[0].experiment.fingerprint
