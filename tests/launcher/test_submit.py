"""What a command that submits to Slurm finds already there; stand-ins answer for Slurm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cli.commands.sweep.on_slurm import what_keeps_its_settings
from launcher.control import loop
from launcher.control.loop import go_on
from launcher.control.orders import SweepCommand, SweepOrders
from launcher.control.rules import SweepStep
from launcher.slurm.workplace import SlurmQueue
from launcher.sweep import begin_sweep, dry_run, slurm_rules, submit
from sweeps.folder.journal import Begun, Journal
from sweeps.folder.submission import Submission, write_submission
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.launcher.conftest import Silent, SlurmOf
from tests.launcher.points_alone import submit_points
from tests.launcher.test_run_here import seeds
from tests.results.conftest import finish, performance
from train_core.trial.measurement import Outcome, Performance

OF_JOBS = "echo '12_0|RUNNING None|N/A|n1|ours|'; echo '12_1|RUNNING None|N/A|n1|ours|'"


@pytest.fixture
def slurm(tools: Callable[..., None]) -> None:
    """A Slurm that runs two jobs, and takes no further one."""
    tools(scontrol="echo 'ClusterName = alps'", squeue=OF_JOBS, sacct="true", sbatch="exit 1", srun="exit 1")


@pytest.mark.usefixtures("slurm")
def test_live_jobs_of_an_earlier_command_are_not_taken_off_the_trials_that_have_ended(
    folder: SweepFolder, record_of: RecordOf, slurm_of: SlurmOf, slurm_submission: Callable[..., Submission]
) -> None:
    earlier = Sweep(folder, record_of(seeds(2)))
    folder.write_record(earlier.record)
    for element, trial in enumerate(earlier.record.trials):
        job = slurm_submission(f"12_{element}", job_name="ours", cluster="alps", element=element)
        write_submission(earlier.prepare(trial), job)
    ends: dict[int, Performance | tuple[Outcome, str]] = {
        2: performance(100.0),
        3: (Outcome.FAILED, "it broke"),
        4: (Outcome.OUT_OF_MEMORY, "too much"),
    }
    now = record_of([{"training.seed": seed} for seed in ends])
    for trial, end in zip(now.trials, ends.values(), strict=True):
        finish(folder, trial, end)
    done = submit_points(Sweep(folder, now), slurm_of())
    assert (done.num_submitted, done.num_live, len(done.kept)) == (0, 2, 3)
    assert [each.outcome for each in done.kept] == [Outcome.COMPLETED, Outcome.FAILED, Outcome.OUT_OF_MEMORY]


def test_sbatch_is_not_told_of_the_job_in_which_the_command_is_given(
    folder: SweepFolder,
    record_of: RecordOf,
    slurm_of: SlurmOf,
    tools: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tools(scontrol="echo 'ClusterName = alps'", squeue="true", sacct="true", srun="true")
    tools(sbatch=f"env > {tmp_path}/environment; echo Submitted batch job 12")
    own = {"SBATCH_RESERVATION": "course", "SLURM_MPI_TYPE": "pmix", "SLURM_CONF": "/etc/slurm.conf"}
    of_the_job = {"SLURM_JOB_ID": "7", "SLURM_MEM_PER_CPU": "1000", "SLURM_RESTART_COUNT": "1", "SLURM_NNODES": "2"}
    for name, value in (own | of_the_job).items():
        monkeypatch.setenv(name, value)
    assert submit_points(Sweep(folder, record_of(seeds(2))), slurm_of()).num_submitted == 2
    lines = (tmp_path / "environment").read_text().splitlines()
    told = dict(line.split("=", 1) for line in lines if line.startswith(("SLURM", "SBATCH")))
    assert told == own


@pytest.mark.parametrize("squeue", ["true", "exit 1"], ids=["squeue answers", "squeue does not"])
def test_a_command_is_patient_where_slurm_does_not_answer_to_its_first_submission(
    folder: SweepFolder,
    record_of: RecordOf,
    slurm_of: SlurmOf,
    tools: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    squeue: str,
) -> None:
    class SlurmIsBack(Silent):
        def say(self, line: str) -> None:
            super().say(line)
            tools(squeue="true", sbatch="echo Submitted batch job 12")

    silent = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"
    tools(scontrol="echo 'ClusterName = alps'", squeue=squeue, sacct="true", srun="true", sbatch=silent)
    monkeypatch.setattr(loop, "RETRY_SECONDS", 0.0)
    sweep, display = Sweep(folder, record_of(seeds(2))), SlurmIsBack()
    conductor = begin_sweep(SweepCommand(sweep, slurm_rules(slurm_of())), SlurmQueue(slurm_of()), on_slurm=True)
    step = go_on(conductor, display, 0.0, is_over=lambda step: True)
    assert len(step.started) == 2
    assert [line.partition(" (")[0].rpartition(" ")[0] for line in display.lines] == [
        "A step failed, and is tried again: Slurm did not say whether it took the job"
    ]


def test_a_dry_run_takes_the_step_that_a_command_takes_and_leaves_the_sweep_as_it_was(
    folder: SweepFolder, record_of: RecordOf, slurm_of: SlurmOf, tools: Callable[..., None]
) -> None:
    told: list[SweepStep] = []
    settings, sweep = slurm_of("slurm.max_array_size=2"), Sweep(folder, record_of(seeds(6)))
    rules = replace(slurm_rules(settings), max_concurrent_trials=3, tell=lambda sweep, step: told.append(step))
    folder.write_record(sweep.record)
    finish(folder, sweep.record.trials[0], (Outcome.FAILED, "it broke"))
    finish(folder, sweep.record.trials[1], performance(100.0))
    Journal(folder.journal).append(Begun(overrides=("sweep=smoke",), on_slurm=True))
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    command = SweepCommand(sweep, rules, SweepOrders(("sweep=smoke",), retry_failed=True))
    step, requests = dry_run(command, settings)
    assert {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()} == before
    assert told == []
    tools(scontrol="echo 'ClusterName = alps'", squeue="true", sacct="true", srun="true")
    tools(sbatch="echo Submitted batch job 12")
    shares = list[tuple[int, int]]()
    done = submit(command, settings, tell=lambda done, total: shares.append((done, total)))
    assert shares == [(2, 3), (3, 3)]
    shown_ids = [tuple(trial.trial_id for trial in request.trials) for request in requests]
    assert shown_ids == [array.trial_ids for array in done.arrays]
    assert [len(ids) for ids in shown_ids] == [2, 1]
    assert (step.waiting, step.held) == (done.step.waiting, done.step.held)


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize(
    ("given", "now", "job", "are_told"),
    [
        (("slurm.constraint=a100",), ("slurm.constraint=h100",), "12_0", (True, True)),
        ((), ("slurm.constraint=h100",), "12_0", (True, True)),
        (("slurm.constraint=a100",), ("slurm.constraint=a100", "training.seed=2"), "12_0", (False, False)),
        (("+slurm.environment.KEY=***",), ("+slurm.environment.KEY=secret",), "12_0", (False, False)),
        ((), ("slurm.constraint=h100",), "77", (False, True)),
    ],
    ids=["another value", "a first value", "the same", "a hidden value", "no job lives"],
)
def test_jobs_that_live_are_said_to_keep_their_request_where_the_command_asks_for_another(
    folder: SweepFolder,
    record_of: RecordOf,
    slurm_submission: Callable[..., Submission],
    given: tuple[str, ...],
    now: tuple[str, ...],
    job: str,
    are_told: tuple[bool, bool],
) -> None:
    sweep = Sweep(folder, record_of(seeds(1)))
    write_submission(sweep.prepare(sweep.record.trials[0]), slurm_submission(job, job_name="ours", cluster="alps"))
    Journal(folder.journal).append(Begun(overrides=("sweep=smoke", *given), on_slurm=True))
    write_submission(folder.controller, slurm_submission("12_1", job_name="ours", cluster="alps"))
    sentences = "Jobs that are queued or running keep", "Job 12_1 goes on with the settings"
    told = what_keeps_its_settings(sweep, ("sweep=smoke", *now))
    assert tuple(any(each.startswith(words) for each in told) for words in sentences) == are_told
