"""`trisweep retry`: have trials of a sweep run again that failed, or that are named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from cli.command_line.arguments import AsJson, OverrideTexts, SweepName
from cli.command_line.started_sweep import started_sweep
from cli.output.console import console, leave_stdout_to_json, print_unwrapped
from cli.output.next_command import begun_command, next_command
from cli.output.state_document import print_state
from conf.errors import UsageError
from conf.units import count_of

Failed = Annotated[bool, typer.Option("--failed", help="All that failed, timed out or lost their node.")]
Trials = Annotated[list[str] | None, typer.Option("--trial", help="This one; enough of its id. May be repeated.")]


def retry(
    name: SweepName,
    overrides: OverrideTexts = None,
    failed: Failed = False,
    trial: Trials = None,
    as_json: AsJson = False,
) -> None:
    """Have trials run again. Whoever carries the sweep out starts them; else this command submits them to Slurm."""
    from launcher.control.orders import retry as retry_trials
    from launcher.control.orders import retry_failed_trials
    from launcher.controller import start_now
    from sweeps.log_choice import reading_called
    from sweeps.sweep import Sweep

    if as_json:
        leave_stdout_to_json()
    if not failed and not trial:
        raise UsageError("Nothing to run again was named", "Give --failed, or --trial with a trial's id.")
    sweep = Sweep.stored_in(started_sweep(name, overrides)[0])
    readings = sweep.read() if trial else []
    named = [reading_called(readings, each) for each in trial or ()]
    again = retry_trials(sweep, named)
    if failed:
        again += [each for each in retry_failed_trials(sweep) if each not in again]
    for trial_id in again:
        console.print(f"  {trial_id}")
    if not again:
        console.print("No trial has failed.")
    elif (step := start_now(sweep)) is not None:
        why = step.held or step.finished
        not_all = f": {why}" if why and not set(again) <= set(step.started) else ""
        print_unwrapped(f"{_to_run(again)}; {count_of(len(step.started), 'job')} submitted{not_all}.")
    else:
        command = begun_command(sweep) or next_command("advance", sweep)
        print_unwrapped(f"{_to_run(again)}. If nobody carries the sweep out: {command}")
    if as_json:
        print_state("retry", sweep.folder, to_run_again=again)


def _to_run(trial_ids: Sequence[str]) -> str:
    return f"{count_of(len(trial_ids), 'trial')} to run again"
