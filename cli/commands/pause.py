"""`trisweep pause` and `trisweep resume`: whether a sweep starts anything new, whoever carries it out."""

from __future__ import annotations

from cli.command_line.arguments import AsJson, OverrideTexts, SweepName
from cli.command_line.started_sweep import started_sweep
from cli.output.console import console, leave_stdout_to_json, print_unwrapped
from cli.output.next_command import begun_command, next_command
from cli.output.state_document import print_state


def pause(name: SweepName, overrides: OverrideTexts = None, as_json: AsJson = False) -> None:
    """Start nothing new of the sweep. What is queued or running goes on."""
    from launcher.control.orders import pause as pause_sweep
    from sweeps.sweep import Sweep

    if as_json:
        leave_stdout_to_json()
    sweep = Sweep.stored_in(started_sweep(name, overrides)[0])
    changed = pause_sweep(sweep)
    console.print("Paused: what runs goes on, and nothing new is started." if changed else "It was paused already.")
    print_unwrapped(f"  {next_command('resume', sweep)}")
    if as_json:
        print_state("pause", sweep.folder, changed=changed)


def resume(name: SweepName, overrides: OverrideTexts = None, as_json: AsJson = False) -> None:
    """Let a paused sweep go on. Its controller's job is submitted again if it has left."""
    from launcher.control.orders import resume as resume_sweep
    from launcher.controller import resume_controller
    from sweeps.folder.history import History
    from sweeps.sweep import Sweep

    if as_json:
        leave_stdout_to_json()
    sweep = Sweep.stored_in(started_sweep(name, overrides)[0])
    changed = resume_sweep(sweep)
    console.print("Resumed." if changed else "It was not paused.")
    job_id = resume_controller(sweep)
    if job_id is not None:
        console.print(f"Job {job_id} goes on with the sweep.")
    elif History.kept_in(sweep.folder).is_cancelled:
        console.print("It is cancelled: nothing is started until the sweep is begun again, with")
        print_unwrapped(f"  {begun_command(sweep) or next_command('sweep', sweep)}")
    else:
        begun = begun_command(sweep)
        console.print(f"Where no other process carries it out{', either of' if begun else ''}:")
        for command in (begun, next_command("advance", sweep)):
            if command is not None:
                print_unwrapped(f"  {command}")
    if as_json:
        print_state("resume", sweep.folder, changed=changed, controller_job_id=job_id)
