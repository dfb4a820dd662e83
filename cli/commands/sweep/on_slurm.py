"""`trisweep sweep` through Slurm: at once, step after step by this command or by a job, or in one allocation."""

from __future__ import annotations

import os
from collections.abc import Sequence

import typer

from cli.commands.plan.answer import print_plan
from cli.commands.sweep.sweep_run import (
    SweepRun,
    cost_text,
    finish,
    print_left_out,
    print_nothing_started,
    report_at_the_end,
    under_way,
)
from cli.output.console import bar, console, print_unwrapped, print_verbatim, shown_path
from cli.output.explained import explain, print_command_of, print_shell_lines
from cli.output.next_command import next_command
from cli.output.progress import ends_in_words, is_troubled, progress_on
from conf.credentials import overrides_for_records
from conf.errors import EXIT_FAILED, EXIT_INTERRUPTED
from conf.overrides import Overrides
from conf.units import count_of
from launcher.allocation.nodes import is_inside
from launcher.allocation.sweep import allocation_request, require_time, run_inside, submit_allocation
from launcher.control.composed_rules import goes_on_by_steps
from launcher.slurm.controller import controller_text
from launcher.slurm.job_status import carrying_job
from launcher.slurm.reconcile import reconcile
from launcher.sweep import carry_out_on_slurm, dry_run, hand_over, submit
from launcher.where import SweepPlace
from results.mlflow.follow import followed_in_mlflow
from sweeps.folder.journal import History
from sweeps.sweep import Sweep
from sweeps.trial import SweepRecord


def carry_out(run: SweepRun) -> None:
    """Submit, go on until the sweep has ended, or hand over to a job, as the configuration says."""
    if keeps := what_keeps_its_settings(run.sweep, run.orders.overrides):
        end = f"end them with `{next_command('cancel', run.sweep)}`"
        print_unwrapped(f"{' '.join(keeps)} To have the new settings of slurm, {end} and give this command again.")
    print_shell_lines(run.place.settings.slurm)
    if run.place.settings.controller.kind == "slurm":
        settings = run.place.settings
        job_id = hand_over(run, settings.slurm, settings.controller)
        console.print(f"Job {job_id} goes on with the sweep until it ends, and writes the report.")
        console.print(f"Folder: {shown_path(run.place.folder.path)}")
        print_next_commands(run.sweep, "status", "pause", "cancel")
    elif goes_on_by_steps(run.place.settings, run.sweep.record):
        _go_on(run)
    else:
        _submit(run)


def show_jobs(run: SweepRun) -> list[str]:
    """Print the controller's job, and what would be submitted first; return the ids of what would run by and by."""
    place, settings = run.place, run.place.settings
    step, requests = dry_run(run, settings.slurm)
    if settings.controller.kind == "slurm":
        text = controller_text(run.sweep, settings.slurm, settings.controller)
        console.rule("1 job that goes on with the sweep until it ends")
        print_verbatim(text)
    for request in requests:
        each = hours_at_most(place, request.device_hours / len(request.trials))
        console.rule(f"{count_of(len(request.trials), 'trial')} of {request.shape} tasks, each {each}")
        for index, trial in enumerate(request.trials):
            console.print(f"  [{index}] {trial.trial_id}")
        print_verbatim(request.sbatch)
        print_command_of(request.trials[0], run.sweep)
    explain([request.sbatch for request in requests], settings)
    print_left_out(run.restriction.record if run.restriction else run.sweep.record)
    if num_live := step.num_in_flight - len(step.started):
        console.print(f"{count_of(num_live, 'trial')} queued or running already.")
    trials, arrays = count_of(len(step.started), "trial"), count_of(len(requests), "job array")
    first = " would be submitted first" if step.waiting else ""
    hours = sum(each.device_hours for each in requests)
    console.print(f"{trials} in {arrays}{first}, {hours_at_most(place, hours)}. Nothing was submitted.")
    if step.waiting:
        why = step.held or f"search.max_concurrent_trials = {run.rules.max_concurrent_trials}"
        console.print(f"{count_of(step.num_waiting, 'trial')} held back: {why}.")
    submitted = [trial.trial_id for request in requests for trial in request.trials]
    return [*submitted, *step.waiting]


def what_keeps_its_settings(sweep: Sweep, overrides: Sequence[str]) -> list[str]:
    """Sentences about live jobs, where an earlier command gave other settings of slurm than these overrides do.

    Raises UsageError where Slurm does not say whether a job carries the sweep out.
    """
    begun = History.kept_in(sweep.folder).begun
    if begun is None:
        return []
    if _slurm_texts(begun.overrides) == _slurm_texts(overrides_for_records(overrides)):
        return []
    carrier, live = carrying_job(sweep.folder), any(each.awaits_slurm for each in reconcile(sweep.read()))
    sentences = ["Jobs that are queued or running keep what was asked of Slurm for them."] if live else []
    return sentences + ([f"Job {carrier} goes on with the settings that it was given."] if carrier else [])


def _slurm_texts(overrides: Sequence[str]) -> tuple[str, ...]:
    return Overrides.parse(overrides).of({"slurm"}).texts


def hours_at_most(place: SweepPlace, hours: float) -> str:
    """The cost of a request if every job runs into its time limit."""
    unit = "GPU-hours" if place.settings.cluster.device.kind == "gpu" else "core-hours"
    return f"{cost_text(hours)} {unit} at most"


def print_next_commands(planned: Sweep, *commands: str) -> None:
    """Commands to copy; they repeat an output folder that was chosen."""
    for command in commands:
        print_unwrapped(f"  {next_command(command, planned)}")


def _submit(run: SweepRun) -> None:
    planned, place = run.sweep, run.place
    with bar("Submitting trials") as tell:
        done = submit(run, place.settings.slurm, tell=tell)
    for array in done.arrays:
        console.print(f"  job {array.job_id}: {count_of(len(array.trial_ids), 'trial')} of {array.shape} tasks")
    is_all_well = not any(map(is_troubled, done.kept))
    submitted = f"{count_of(done.num_submitted, 'trial')} submitted ({hours_at_most(place, done.device_hours)})"
    others = f"{done.num_live} queued or running already, {len(done.kept)} finished"
    console.print(f"{submitted}, {others}. Folder: {shown_path(place.folder.path)}")
    if not (done.num_submitted or done.num_live or done.step.held):
        how = "all is finished" if is_all_well else ends_in_words(planned, done.kept)
        print_nothing_started(how, done.kept)
    elif not is_all_well:
        print_unwrapped(f"Of what has finished: {ends_in_words(planned, done.kept)}.")
    if done.step.held:
        console.print(f"{count_of(done.step.num_waiting, 'trial')} held back: {done.step.held}.")
    print_next_commands(planned, "status", "report", "cancel", *(["advance"] if done.step.held else []))


def _go_on(run: SweepRun) -> None:
    planned, place = run.sweep, run.place
    try:
        with followed_in_mlflow(planned.folder.path, place.settings.tracking):
            carry_out_on_slurm(
                run,
                place.settings.slurm,
                progress=progress_on(console, under_way(run)),
                poll_seconds=place.settings.controller.poll_seconds,
            )
    except KeyboardInterrupt:
        console.print("Stopped. The jobs go on; the same command goes on with the sweep, and so does each of:")
        print_next_commands(planned, "advance", "status", "cancel")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finish(run)


def show_allocation(place: SweepPlace, record: SweepRecord) -> None:
    """The points, and the one job with the text that sbatch would get."""
    settings = place.settings
    require_time(settings.slurm, settings.launcher)
    print_plan(record, place.composition)
    allocation = allocation_request(Sweep(place.folder, record), settings.slurm, settings.launcher, settings.cluster)
    print_verbatim(allocation.sbatch)
    explain([allocation.sbatch], settings)
    chosen = sum(trial.selected for trial in record.trials)
    console.print(
        f"{count_of(chosen, 'trial')} as steps of one allocation of {count_of(allocation.shape.num_nodes, 'node')}"
        f" ({hours_at_most(place, allocation.device_hours)} each time it runs). Nothing was submitted."
    )


def sweep_in_allocation(run: SweepRun) -> None:
    """Submit the allocation; inside one, as salloc gives, carry the sweep out there."""
    if is_inside(os.environ):
        _run_inside(run)
        return
    print_shell_lines(run.place.settings.slurm)
    planned, settings, where = run.sweep, run.place.settings, f"Folder: {shown_path(run.place.folder.path)}"
    slurm, launcher = settings.slurm, settings.launcher
    require_time(slurm, launcher)
    job_id, step = submit_allocation(run, slurm, launcher, settings.cluster)
    if step is None:
        console.print(f"Job {job_id} carries the sweep out already. {where}")
    elif job_id is None:
        console.print(f"Nothing is left to run: {step.finished}.")
    else:
        waiting = count_of(step.num_waiting, "trial") if step.num_waiting else "the sweep"
        console.print(f"Job {job_id} carries {waiting} out as steps. {where}")
    print_next_commands(planned, "status", "report", "pause", "cancel")


def _run_inside(run: SweepRun) -> None:
    planned, settings = run.sweep, run.place.settings
    try:
        with followed_in_mlflow(planned.folder.path, settings.tracking):
            step = run_inside(run, settings.slurm, settings.cluster, progress_on(console, under_way(run)))
    except KeyboardInterrupt:
        console.print("Interrupted; the steps have been ended. The same command continues.")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if step.finished:
        finish(run)
        return
    remaining = f"The allocation ends with {count_of(step.num_waiting, 'trial')} left."
    console.print(f"{step.held or remaining} The same command continues in another.")
    if not report_at_the_end(Sweep.stored_in(planned.folder), settings.tracking, run.restriction):
        raise typer.Exit(EXIT_FAILED)
