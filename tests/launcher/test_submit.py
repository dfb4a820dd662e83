"""What a command that submits to Slurm finds already there; stand-ins answer for Slurm."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from launcher.sweep import submit
from sweeps.folder.submission import Submission, write_submission
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.launcher.conftest import SlurmOf
from tests.launcher.test_run_here import seeds
from tests.results.conftest import finish, performance
from train_core.measurement import Outcome

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
    ends = {2: performance(100.0), 3: (Outcome.FAILED, "it broke"), 4: (Outcome.OUT_OF_MEMORY, "too much")}
    now = record_of([{"training.seed": seed} for seed in ends])
    for trial, end in zip(now.trials, ends.values(), strict=True):
        finish(folder, trial, end)
    done = submit(Sweep(folder, now), slurm_of())
    assert (done.num_submitted, done.num_live, done.num_kept) == (0, 2, 3)
    assert [each.outcome for each in done.kept] == [Outcome.COMPLETED, Outcome.FAILED, Outcome.OUT_OF_MEMORY]
