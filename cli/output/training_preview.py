"""A long training on paper: what it asks for, the text for sbatch, what runs, how long. Nothing is written."""

from __future__ import annotations

from pathlib import Path

from cli.output.console import console, print_unwrapped, print_verbatim
from cli.output.explained import explain
from cli.output.state_table import duration
from conf.plan.experiment import Experiment
from conf.units import GIBIBYTE, SECONDS_PER_MINUTE, count_of
from costs import estimate
from launcher.folder_lock import require_writable
from launcher.long_run import Best, LongRun, long_run_text
from launcher.slurm.job_status import live_job
from launcher.where import SweepPlace
from train_core.job.training_folder import training_in
from train_core.trial.folder import TrialFolder


def preview_of_job(run: LongRun, place: SweepPlace) -> None:
    """Print the job that would be submitted.

    Raises ConfigError where its folder cannot be written, or a setting of Slurm is wrong.
    """
    slurm = place.settings.slurm
    seconds = _print_plan(run.experiment, run.folder, run.best)
    if (job := live_job(run.folder)) is not None:
        print_unwrapped(f"Job {job.job_id} is {job.state.name} there: the same command shows how far it is.")
    text = long_run_text(run, slurm)
    console.rule("1 job that saves and requeues itself until the last step")
    print_verbatim(text)
    explain([text], place.settings)
    runs = max(1, -(-round(seconds) // (slurm.time_limit_minutes * SECONDS_PER_MINUTE)))
    limit = f"slurm.time_limit_minutes = {slurm.time_limit_minutes}"
    print_unwrapped(f"About {count_of(runs, 'run')} of it at {limit}, by this. Nothing was submitted.")


def preview_here(experiment: Experiment, folder: TrialFolder, best: Best | None = None) -> None:
    """Print what would train on this machine, and where; raises ConfigError where the folder cannot be written."""
    _print_plan(experiment, folder, best)
    ranks = count_of(experiment.parallel.world_size, "rank")
    print_unwrapped(f"{ranks} would train on this machine, in {folder.path}. Nothing was started.")


def preview_alone(experiment: Experiment, output_dir: str) -> None:
    """Print what a training without a sweep would train here."""
    preview_here(experiment, training_in(Path(output_dir) / "train", experiment).folder)


def _print_plan(experiment: Experiment, folder: TrialFolder, best: Best | None) -> float:
    """Print the request and how long it takes, and return the seconds of all steps that are left."""
    require_writable(folder.path)
    cluster, predicted = experiment.cluster, estimate(experiment)
    done = max((each.step for each in folder.read_metrics()[-1:]), default=0)
    left, step_seconds, origin = experiment.training.num_steps - done, predicted.step_seconds, "predicted"
    if best is not None and best.is_measured:  # of the same plan; its batch may be another
        step_seconds *= predicted.model_flops_per_second_per_device / best.flops_per_second_per_device
        origin = "as the sweep measured"
    devices = f"{experiment.parallel.world_size:,} x {cluster.device.name} of {cluster.name}"
    memory = f"{predicted.peak_memory_bytes / GIBIBYTE:.1f} of {predicted.memory_capacity_bytes / GIBIBYTE:.1f} GiB"
    print_unwrapped(f"{experiment.model.name} in {experiment.label}, on {devices}; {memory}, predicted")
    print_unwrapped(
        f"{count_of(left, 'step')} of {step_seconds:.3g} s ({origin}): {duration(left * step_seconds)} in all"
    )
    return left * step_seconds
