"""`trisweep sweep` through Slurm: all of it at once, or step after step by this command or by a job of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from cli.commands.sweep.end import end_command
from cli.live_import import followed_in_mlflow
from cli.output.console import console, print_unwrapped, shown_path
from cli.output.next_command import next_command
from conf.errors import EXIT_INTERRUPTED
from conf.units import count_of

if TYPE_CHECKING:
    from launcher.control.advance import Rules
    from launcher.control.orders import SweepOrders
    from launcher.where import SweepPlace
    from sweeps.later_command import Restriction
    from sweeps.sweep import Sweep


def carry_out(
    place: SweepPlace, planned: Sweep, rules: Rules, command: SweepOrders, restriction: Restriction | None
) -> None:
    """Submit, go on until the sweep has ended, or hand over to a job, as the configuration says."""
    from launcher.control.rules import goes_on_by_steps

    if place.settings.controller.kind == "slurm":
        _hand_over(place, planned, rules, command)
    elif goes_on_by_steps(place.settings):
        _go_on(place, planned, rules, command, restriction)
    else:
        _submit(place, planned, rules, command)


def print_why_it_ended(stored: Sweep, rules: Rules) -> None:
    """Print why a sweep that chose points or measured some again has ended, and what its search has learned."""
    from sweeps.folder.history import History

    finished = History.kept_in(stored.folder).finished
    if finished and (rules.rounds is not None or rules.max_trials is not None):
        console.print(f"The sweep has ended: {finished}.")
        for sentence in rules.search.lessons(stored.read()):
            console.print(f"  {sentence}")


def hours_at_most(place: SweepPlace, hours: float) -> str:
    """The cost of a request if every job runs into its time limit."""
    from cli.commands.sweep.costs import cost_text

    unit = "GPU-hours" if place.settings.cluster.device.kind == "gpu" else "core-hours"
    return f"{cost_text(hours)} {unit} at most"


def print_next_commands(planned: Sweep, *commands: str) -> None:
    """Commands to copy; they repeat an output folder that was chosen."""
    for command in commands:
        print_unwrapped(f"  {next_command(command, planned)}")


def _submit(place: SweepPlace, planned: Sweep, rules: Rules, command: SweepOrders) -> None:
    from launcher.sweep import submit

    done = submit(planned, place.settings.slurm, rules=rules, command=command)
    for array in done.arrays:
        console.print(f"  job {array.job_id}: {count_of(len(array.trial_ids), 'trial')} of {array.shape} tasks")
    console.print(
        f"{count_of(done.num_submitted, 'trial')} submitted ({hours_at_most(place, done.device_hours)}),"
        f" {done.num_live} queued or"
        f" running already, {done.num_kept} finished. Folder: {shown_path(place.folder.path)}"
    )
    if not (done.num_submitted or done.num_live or done.step.held):
        console.print("Nothing to do: all is finished. --remeasure measures every point again.")
    if done.step.held:
        console.print(f"{count_of(done.step.num_waiting, 'trial')} held back: {done.step.held}.")
    print_next_commands(planned, "status", "report", "cancel", *(["advance"] if done.step.held else []))


def _go_on(
    place: SweepPlace, planned: Sweep, rules: Rules, command: SweepOrders, restriction: Restriction | None
) -> None:
    from cli.commands.report import report_on
    from cli.output.progress import progress_on
    from launcher.sweep import carry_out_on_slurm
    from sweeps.sweep import Sweep

    try:
        with followed_in_mlflow(planned.folder.path, place.settings.tracking):
            carry_out_on_slurm(
                planned,
                place.settings.slurm,
                rules=rules,
                progress=progress_on(console),
                poll_seconds=place.settings.controller.poll_seconds,
                command=command,
            )
    except KeyboardInterrupt:
        console.print("Stopped. The jobs go on; the same command goes on with the sweep, and so does each of:")
        print_next_commands(planned, "advance", "status", "cancel")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    stored = Sweep.stored_in(planned.folder)
    print_why_it_ended(stored, rules)
    report_on(stored, place.settings.tracking, restriction)
    end_command(stored, place)


def _hand_over(place: SweepPlace, planned: Sweep, rules: Rules, command: SweepOrders) -> None:
    from launcher.sweep import hand_over

    job_id = hand_over(
        planned,
        place.settings.slurm,
        place.settings.controller,
        rules=rules,
        command=command,
    )
    console.print(f"Job {job_id} goes on with the sweep until it ends, and writes the report.")
    console.print(f"Folder: {shown_path(place.folder.path)}")
    print_next_commands(planned, "status", "pause", "cancel")
