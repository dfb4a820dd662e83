"""`trisweep pause` and `trisweep resume`: whether a sweep starts anything new, whoever carries it out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.arguments import AsJson, OverrideTexts, SweepName
from cli.output.console import console, print_unwrapped
from cli.output.next_command import begun_command, next_command
from cli.started_sweep import print_state, started_sweep
from conf.errors import UsageError

if TYPE_CHECKING:
    from sweeps.sweep import Sweep


def pause(name: SweepName, overrides: OverrideTexts = None, as_json: AsJson = False) -> None:
    """Start nothing new of the sweep. What is queued or running goes on."""
    from launcher.control.orders import pause as pause_sweep
    from sweeps.sweep import Sweep

    sweep = Sweep.stored_in(started_sweep(name, overrides)[0])
    _require_that_it_goes_on(sweep)
    changed = pause_sweep(sweep)
    console.print("Paused: what runs goes on, and nothing new is started." if changed else "It was paused already.")
    print_unwrapped(f"  {next_command('resume', sweep)}")
    if as_json:
        print_state("pause", sweep.folder, changed=changed)


def resume(name: SweepName, overrides: OverrideTexts = None, as_json: AsJson = False) -> None:
    """Let a paused sweep go on. Its controller's job is submitted again if it has left."""
    from launcher.control.orders import resume as resume_sweep
    from launcher.controller import resume_controller
    from sweeps.sweep import Sweep

    sweep = Sweep.stored_in(started_sweep(name, overrides)[0])
    # That a sweep is paused would keep the next command, too, from starting anything.
    changed = resume_sweep(sweep)
    _require_that_it_goes_on(sweep, "It is paused no longer. " if changed else "")
    console.print("Resumed." if changed else "It was not paused.")
    job_id = resume_controller(sweep)
    if job_id is not None:
        console.print(f"Job {job_id} goes on with the sweep.")
    else:
        begun = begun_command(sweep)
        console.print(f"Where no other process carries it out{', either of' if begun else ''}:")
        for command in (begun, next_command("advance", sweep)):
            if command is not None:
                print_unwrapped(f"  {command}")
    if as_json:
        print_state("resume", sweep.folder, changed=changed, controller_job_id=job_id)


def _require_that_it_goes_on(sweep: Sweep, done: str = "") -> None:
    """Raises UsageError where nothing of the sweep will be started, whether it is paused or not."""
    from sweeps.folder.journal import History

    history, again = History.kept_in(sweep.folder), begun_command(sweep)
    command = f"`{again}`" if again else "the sweep's own command"
    if history.is_cancelled:
        raise UsageError(f"{done}Sweep {sweep.record.name} is cancelled", f"To begin it again, give {command}.")
    if history.has_ended([each.outcome for each in sweep.read()]):
        failed = f"`{next_command('retry', sweep, '--failed')}` runs again what failed"
        raise UsageError(f"{done}Sweep {sweep.record.name} has ended", f"{failed}, and {command} what is new in it.")
