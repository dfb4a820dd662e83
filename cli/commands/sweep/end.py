"""The end of a sweep's command: what to do about trials that failed, and exit code 1 if nothing was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from cli.output.console import console, print_unwrapped
from cli.output.next_command import next_command, same_command
from conf.errors import EXIT_FAILED
from conf.units import count_of

if TYPE_CHECKING:
    from launcher.where import SweepPlace
    from sweeps.sweep import Sweep


def end_command(sweep: Sweep, place: SweepPlace) -> None:
    """Name the commands that say why trials failed and run them again.

    Raises:
        typer.Exit: no point of the sweep has a measurement.
    """
    from cli.output.progress import is_troubled
    from launcher.where import slurm_answers

    states = sweep.read()
    if failed := sum(is_troubled(state) for state in states):
        console.print(f"{count_of(failed, 'trial')} failed. Why, and to run what failed again:")
        print_unwrapped(f"  {next_command('status', sweep)}")
        own = place.composition.overrides.without({"tracking"})
        here = [] if place.on_slurm or not slurm_answers() else ["--here"]
        print_unwrapped(f"  {same_command('sweep', sweep.record.name, own, *here, '--retry-failed')}")
    if not any(state.performance for state in states):
        console.print("Nothing was measured.")
        raise typer.Exit(EXIT_FAILED)
