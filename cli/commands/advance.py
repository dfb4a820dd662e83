"""`trisweep advance`: one step of a sweep, for cron, or by hand where nobody else goes on with it."""

from __future__ import annotations

import typer

from cli.arguments import AsJson, OverrideTexts, SweepName
from cli.output.console import print_unwrapped, shown_path
from cli.started_sweep import further_overrides, print_state, started_sweep

EXIT_GOES_ON = 75
"""The sweep has not ended yet; sysexits.h calls this number a temporary failure, after which one tries again later."""


def advance(name: SweepName, overrides: OverrideTexts = None, as_json: AsJson = False) -> None:
    """Take one step of a sweep: see what has ended, start what is next. Exit code 0: ended; 75: goes on or is paused.

    Configuration that was given to `trisweep sweep` need not be given again; what is given here counts for this step.
    """
    from launcher.controller import take_up
    from launcher.folder_lock import lock_folder

    folder = started_sweep(name, overrides)[0]
    with lock_folder(folder):
        _, conductor = take_up(folder, further_overrides(overrides))
        step = conductor.advance()
    if step.finished:
        how = f"The sweep has ended: {step.finished}"
    else:
        how = f"Nothing further is started: {step.held}" if step.held else "The sweep goes on"
    counts = f"{len(step.started)} started, {step.num_in_flight} queued or running, {step.num_waiting} waiting"
    print_unwrapped(f"{counts}. {how}. {shown_path(folder.path)}")
    if as_json:
        left = {"num_in_flight": step.num_in_flight, "num_waiting": step.num_waiting, "held": step.held or None}
        print_state("advance", folder, started=step.started, **left)
    if not step.finished:
        raise typer.Exit(EXIT_GOES_ON)
