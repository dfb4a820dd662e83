"""A sweep with `launcher=allocation`: one Slurm job in which all trials run as steps."""

from __future__ import annotations

import os

import typer

from cli.commands.plan.command import print_plan
from cli.commands.report import report_on
from cli.commands.sweep.on_slurm import hours_at_most, print_next_commands
from cli.commands.sweep.sweep_run import SweepRun, finish, under_way
from cli.live_import import followed_in_mlflow
from cli.output.console import console, print_verbatim, shown_path
from cli.output.progress import progress_on
from conf.errors import EXIT_INTERRUPTED
from conf.units import count_of
from launcher.allocation.nodes import is_inside
from launcher.allocation_sweep import request, require_time, run_inside, submit_allocation
from launcher.where import SweepPlace
from sweeps.sweep import Sweep
from sweeps.trial import SweepRecord


def show_allocation(place: SweepPlace, record: SweepRecord) -> None:
    """The points, and the one job with the text that sbatch would get."""
    settings = place.settings
    require_time(settings.slurm, settings.launcher)
    print_plan(record, place.composition)
    allocation = request(Sweep(place.folder, record), settings.slurm, settings.launcher, settings.cluster)
    print_verbatim(allocation.sbatch)
    chosen = sum(trial.selected for trial in record.trials)
    console.print(
        f"{count_of(chosen, 'trial')} as steps of one allocation of {count_of(allocation.shape.num_nodes, 'node')}"
        f" ({hours_at_most(place, allocation.device_hours)} each time it runs). Nothing was submitted."
    )


def sweep_in_allocation(run: SweepRun) -> None:
    """Submit the allocation; inside one, as salloc gives, carry the sweep out there."""
    if is_inside(os.environ):
        _run_inside(run)
    else:
        require_time(run.place.settings.slurm, run.place.settings.launcher)
        _submit(run)


def _submit(run: SweepRun) -> None:
    planned, place, settings = run.sweep, run.place, run.place.settings
    done = submit_allocation(
        planned,
        settings.slurm,
        settings.launcher,
        settings.cluster,
        rules=run.rules,
        command=run.orders,
    )
    if done.job_id is None:
        console.print(f"Nothing is left to run: {done.step.finished if done.step else ''}.")
    elif done.is_new:
        waiting = count_of(done.step.num_waiting, "trial") if done.step and done.step.num_waiting else "the sweep"
        console.print(f"Job {done.job_id} carries {waiting} out as steps. Folder: {shown_path(place.folder.path)}")
    else:
        console.print(f"Job {done.job_id} carries the sweep out already. Folder: {shown_path(place.folder.path)}")
    print_next_commands(planned, "status", "report", "pause", "cancel")


def _run_inside(run: SweepRun) -> None:
    planned, settings = run.sweep, run.place.settings
    try:
        with followed_in_mlflow(planned.folder.path, settings.tracking):
            step = run_inside(
                planned,
                settings.slurm,
                settings.cluster,
                progress_on(console, under_way(run)),
                rules=run.rules,
                command=run.orders,
            )
    except KeyboardInterrupt:
        console.print("Interrupted; the steps have been ended. The same command continues.")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if step.finished:
        finish(run)
        return
    remaining = f"The allocation ends with {count_of(step.num_waiting, 'trial')} left."
    console.print(f"{step.held or remaining} The same command continues in another.")
    report_on(Sweep.stored_in(planned.folder), settings.tracking, run.restriction)
