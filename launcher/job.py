"""The functions that run inside a job. Who submits a job names them (`ByName`), and does not import them.

That of a controller's job is `cli.controller.run_in_slurm`, and that of an allocation's job `AllocationJob`. Each
imports the trainer only when it is called, because a supervisor on this machine needs no torch of its own.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from conf.private_files import read_own
from conf.units import count_of
from launcher.doctor.preflight import require_fit_nodes
from launcher.job_payload import PREFLIGHT
from launcher.provenance import keep_job_provenance
from launcher.slurm.job_status import own_job_id, requeue
from launcher.slurm.query import SlurmSilent, query_jobs
from sweeps.folder.submission import Submission, read_submission, write_submission
from train_core.process.long_lived import importing_torch
from train_core.process.stop import Stopped
from train_core.trial.folder import Attempt, AttemptOver, JobFolder, TrialFolder

PATIENCE_SECONDS = 60.0
"""For so long, by default, an NFS client may go on showing an old version of a file from its cache."""

POLL_SECONDS = 0.5
LEAST_STEPS = 2
"""A job that has time for fewer steps is not requeued, as it might spend its allocation on starting up for ever."""


def run_in_slurm(folder: str) -> None:
    """Run one rank of a trial. srun starts this in every task of the job.

    Raises:
        UsageError: others may write in the folder, and so which program it runs.
    """
    read_own(TrialFolder(folder).trial)
    submission = own_submission(JobFolder(folder))
    if submission is None:
        return
    if os.environ["SLURM_PROCID"] == "0":
        keep_job_provenance(JobFolder(folder))
    # Slurm counts how often it has started this job again, and sets no count at its first start.
    attempt = Attempt(submission.attempt, int(os.environ.get("SLURM_RESTART_COUNT", "0")))
    try:
        if os.environ.get(PREFLIGHT) == "1":
            require_fit_nodes(TrialFolder(folder, attempt))
        if TrialFolder(folder).read_experiment().trainer.is_own:
            from train_core.job.trial import run_trial_as_rank

            run_trial_as_rank(Path(folder), attempt=attempt)
        else:
            from launcher.command_trainer.job import run_as_task

            run_as_task(Path(folder), attempt)
    except AttemptOver as over:
        # A later attempt works here, so this job leaves without a failure that could be taken for that attempt's.
        print(over)
    except Stopped as stopped:
        # Only one rank requeues, as the requeue ends all of them. What becomes of a step, its allocation decides.
        if os.environ["SLURM_PROCID"] == "0" and submission.inside is None and goes_on(stopped):
            requeue()


def measure_rates_in_slurm(folder: str) -> None:
    """Run one rank of a calibration. srun starts this in every task of the job."""
    if own_submission(JobFolder(folder)) is None:
        return
    with importing_torch():
        from rates.device import run_from_launcher

    run_from_launcher(Path(folder))


def check_node_in_slurm(folder: str) -> None:
    """Tell the doctor of this node. srun starts this in the one task of each of the job's nodes."""
    if own_submission(JobFolder(folder)) is None:
        return
    from launcher.doctor.in_job import report_as_rank
    from launcher.doctor.node_report import DoctorFolder

    report_as_rank(DoctorFolder(folder))


def run_on_this_machine(folder: str, devices: tuple[int, ...], time_limit_seconds: float | None) -> None:
    """Run and supervise all ranks of a trial. Devices are numbers among the visible ones; none means the CPU."""
    keep_job_provenance(JobFolder(folder))
    if TrialFolder(folder).read_experiment().trainer.is_own:
        from train_core.job.trial import run_trial_here

        run_trial_here(Path(folder), devices, time_limit_seconds)
    else:
        from launcher.command_trainer.job import run_here

        run_here(Path(folder), devices, time_limit_seconds)


def goes_on(stopped: Stopped) -> bool:
    """Return whether a job that has saved and stopped is to be run again.

    SIGUSR2 is Slurm's warning before the time limit, after which the job goes on if it gets anywhere at all. SIGTERM
    may also come from a person who cancels the job and does not want it back: Slurm then no longer calls it running.
    """
    if stopped.number == signal.SIGUSR2:
        if stopped.num_steps < LEAST_STEPS:
            steps = count_of(stopped.num_steps, "step")
            print(f"saved, and not requeued: {steps} in one job. Raise slurm.time_limit_minutes.")
        return stopped.num_steps >= LEAST_STEPS
    try:
        state = query_jobs([own_job_id()]).get(own_job_id())
    except SlurmSilent:
        return False
    return state is not None and state.name == "RUNNING"


def own_submission(folder: JobFolder) -> Submission | None:
    """The folder's submission if it names this job; None if another job has taken its place.

    A network file system may show an old file for a while, so the answer is None only when patience has run out.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        submission = read_submission(folder)
        # The name is compared and not the number, which the submitter learns only after the job may have started.
        if submission is not None and submission.job_name == os.environ["SLURM_JOB_NAME"]:
            return _adopt(folder, submission)
        if time.monotonic() > deadline:
            return None
        time.sleep(POLL_SECONDS)


def _adopt(folder: JobFolder, submission: Submission) -> Submission:
    """The submission with the job's number, which rank 0 writes down if the submitter has not.

    The submitter may have died between sbatch and its note, or may just not have come to it yet.
    """
    if os.environ["SLURM_PROCID"] != "0":
        return submission
    if submission.job_id is None:
        step = f".{os.environ['SLURM_STEP_ID']}" if submission.inside else ""
        submission = submission.model_copy(update={"job_id": f"{own_job_id()}{step}"})
        write_submission(folder, submission)
    folder.logs.mkdir(parents=True, exist_ok=True)
    for target in (submission.output_of(0), submission.error_of(0)):  # for people who look there
        link = folder.logs / f"slurm{target.suffix}"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    return submission
