"""`trisweep retry`: have trials of a sweep run again that failed, or that are named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import AsJson, OverrideTexts, SweepName
from cli.output.console import SILENT, complaints, console, print_unwrapped
from cli.output.next_command import begun_command, next_command
from cli.started_sweep import further_overrides, print_state, refuse_trials_among, started_sweep
from conf.errors import UsageError
from conf.overrides import shell_word
from conf.units import count_of

if TYPE_CHECKING:
    from sweeps.reading import TrialReading

Failed = Annotated[
    bool, typer.Option("--failed", help="All of the last command that failed, timed out or lost their node.")
]
Trials = Annotated[list[str] | None, typer.Option("--trial", help="This one; enough of its id. May be repeated.")]


def retry(
    name: SweepName,
    overrides: OverrideTexts = None,
    failed: Failed = False,
    trial: Trials = None,
    as_json: AsJson = False,
) -> None:
    """Have trials run again. Whoever carries the sweep out starts them; else this command submits them to Slurm.

    Configuration that is given here, such as a longer time limit, counts for what this command submits.
    """
    from cli.output.progress import NAMED, ends_in_words
    from launcher.control.orders import failed_trials, retry_failed_trials
    from launcher.control.orders import retry as retry_trials
    from launcher.controller import start_now
    from launcher.state import reconcile
    from sweeps.log_choice import reading_called
    from sweeps.sweep import Sweep

    refuse_trials_among(overrides or ())
    if not failed and not trial:
        raise UsageError("Nothing to run again was named", "Give --failed, or --trial with a trial's id.")
    sweep, further = Sweep.stored_in(started_sweep(name, overrides)[0]), further_overrides(overrides)
    readings = sweep.read() if trial else []
    named = [reading_called(readings, each) for each in trial or ()]
    again = retry_trials(sweep, named)
    others: list[TrialReading] = []
    if failed:
        # A job that Slurm ended may have left no word, and its end is written down only once somebody has asked.
        reconcile(sweep.read(), tell_silence=lambda: complaints.print(SILENT))
        again += [each for each in retry_failed_trials(sweep) if each not in again]
        others = [each for each in failed_trials(sweep.read()) if not each.trial.selected and each.name not in again]
    for trial_id in again:
        console.print(f"  {trial_id}")
    to_run = f"{count_of(len(again), 'trial')} to run again"
    if not again:
        # Trials may have ended otherwise; then how, and what runs them again.
        readings = sweep.read()
        otherwise = f": {ends_in_words(sweep, readings)}" if any(each.outcome in NAMED for each in readings) else ""
        print_unwrapped(f"No trial{' of the last command' if others else ''} has failed{otherwise}.")
    elif (step := start_now(sweep, further)) is not None:
        why = step.held or step.finished
        not_all = f": {why}" if why and not set(again) <= set(step.started) else ""
        print_unwrapped(f"{to_run}; {count_of(len(step.started), 'job')} submitted{not_all}.")
    else:
        command = begun_command(sweep) or next_command("advance", sweep)
        words = [command, *map(shell_word, further.without({"output_dir"}).texts)]
        print_unwrapped(f"{to_run}. If nobody carries the sweep out: {' '.join(words)}")
    if others:
        one, left = next_command("retry", sweep, "--trial", "ID"), count_of(len(others), "failed trial")
        print_unwrapped(f"{left} of earlier commands left alone; `{one}` runs one of them again.")
    if as_json:
        print_state("retry", sweep.folder, to_run_again=again)
