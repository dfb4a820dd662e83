"""A sweep with `launcher=allocation`: one Slurm job in which all trials run as steps."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from cli.commands.plan.command import print_plan
from cli.commands.sweep.end import end_command
from cli.commands.sweep.on_slurm import print_next_commands
from cli.live_import import followed_in_mlflow
from cli.output.console import console, print_verbatim, shown_path
from conf.errors import EXIT_INTERRUPTED
from conf.units import count_of

if TYPE_CHECKING:
    from launcher.control.advance import Rules
    from launcher.control.orders import SweepOrders
    from launcher.where import SweepPlace
    from sweeps.sweep import Sweep
    from sweeps.trial import SweepRecord


def show_allocation(place: SweepPlace, record: SweepRecord) -> None:
    """The points, and the one job with the text that sbatch would get."""
    from launcher.allocation_sweep import request, require_time
    from sweeps.sweep import Sweep

    settings = place.settings
    require_time(settings.slurm, settings.launcher)
    print_plan(record, place.composition)
    allocation = request(Sweep(place.folder, record), settings.slurm, settings.launcher, settings.cluster)
    print_verbatim(allocation.sbatch)
    unit = "GPU-hours" if allocation.shape.uses_gpus else "core-hours"
    chosen = sum(trial.selected for trial in record.trials)
    console.print(
        f"{count_of(chosen, 'trial')} as steps of one allocation of {count_of(allocation.shape.num_nodes, 'node')}"
        f" ({allocation.device_hours:,.0f} {unit} at most each time it runs). Nothing was submitted."
    )


def sweep_in_allocation(place: SweepPlace, planned: Sweep, rules: Rules, command: SweepOrders) -> None:
    """Submit the allocation; inside one, as salloc gives, carry the sweep out there."""
    from launcher.allocation.nodes import is_inside
    from launcher.allocation_sweep import require_time

    if is_inside(os.environ):
        _run_inside(place, planned, rules, command)
    else:
        require_time(place.settings.slurm, place.settings.launcher)
        _submit(place, planned, rules, command)


def _submit(place: SweepPlace, planned: Sweep, rules: Rules, command: SweepOrders) -> None:
    from launcher.allocation_sweep import submit_allocation

    settings = place.settings
    done = submit_allocation(
        planned,
        settings.slurm,
        settings.launcher,
        settings.cluster,
        rules=rules,
        command=command,
    )
    if done.job_id is None:
        console.print(f"Nothing is left to run: {done.step.finished if done.step else ''}.")
    elif done.is_new:
        waiting = count_of(done.step.num_waiting, "trial") if done.step and done.step.num_waiting else "the sweep"
        console.print(f"Job {done.job_id} carries {waiting} out as steps. Folder: {shown_path(place.folder.path)}")
    else:
        console.print(f"Job {done.job_id} carries the sweep out already. Folder: {shown_path(place.folder.path)}")
    print_next_commands(planned, "status", "report", "pause", "cancel")


def _run_inside(place: SweepPlace, planned: Sweep, rules: Rules, command: SweepOrders) -> None:
    from cli.commands.report import report_on
    from cli.commands.sweep.on_slurm import print_why_it_ended
    from cli.output.progress import progress_on
    from launcher.allocation_sweep import run_inside
    from sweeps.sweep import Sweep

    settings = place.settings
    try:
        with followed_in_mlflow(planned.folder.path, settings.tracking):
            step = run_inside(
                planned,
                settings.slurm,
                settings.cluster,
                progress_on(console),
                rules=rules,
                command=command,
            )
    except KeyboardInterrupt:
        console.print("Interrupted; the steps have been ended. The same command continues.")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    stored = Sweep.stored_in(planned.folder)
    if step.finished:
        print_why_it_ended(stored, rules)
    else:
        remaining = f"The allocation ends with {count_of(step.num_waiting, 'trial')} left."
        console.print(f"{step.held or remaining} The same command continues in another.")
    report_on(stored, settings.tracking)
    if step.finished:
        end_command(stored, place)
