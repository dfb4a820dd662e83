"""`trisweep logs`: print the log of a trial, or follow it until the trial ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from cli.arguments import SweepName
from cli.output.console import complaints, console
from cli.started_sweep import started_sweep
from conf.errors import UsageError
from conf.folders import groups
from conf.overrides import Override, command_line
from conf.units import count_of

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TRIAL] [OVERRIDES]...",
        help="A trial or training, or a part of its name: else the last that failed, or one that runs.",
    ),
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the trial ends; Ctrl-C leaves it alone.")]
Rank = Annotated[int | None, typer.Option(help="The log of this rank; else of the one that failed first.", min=0)]


def logs(name: SweepName, words: Words = None, follow: Follow = False, rank: Rank = None) -> None:
    """Print the log of a trial; its name and file go to stderr."""
    from cli.output.trial_log import follow_log, print_log
    from launcher.local.workplace import look_here
    from launcher.long_run import trainings_of
    from sweeps.log_choice import most_interesting, reading_called
    from sweeps.sweep import Sweep

    trial, overrides = _trial_and_overrides(words or [])
    # Slurm is asked only about the one that is followed.
    sweep = Sweep.stored_in(started_sweep(name, overrides)[0])
    trainings = [run.read() for run in trainings_of(sweep.folder.path.parent, sweep.record.name)]
    readings = [look_here(each) for each in (*sweep.read(), *trainings)]
    chosen = reading_called(readings, trial) if trial else most_interesting(readings, to_follow=follow)
    if follow:
        follow_log(chosen, rank)
        return
    print_log(chosen, rank)
    others = [each for each in readings if each.log is not None and each is not chosen]
    if trial is None and others and console.is_terminal:
        command = command_line(("trisweep", "logs", name, "TRIAL", *overrides))
        complaints.print(f"Logs of {count_of(len(others), 'other trial')}: {command}. Status names them.")


def _trial_and_overrides(words: Sequence[str]) -> tuple[str | None, list[str]]:
    names = [word for word in words if _names_a_trial(Override.parse(word))]
    if len(names) > 1:
        raise UsageError(f"{len(names)} trials were named: {', '.join(names)}", "Name one.")
    return (names[0] if names else None), [word for word in words if word not in names]


def _names_a_trial(word: Override) -> bool:
    """True for a trial's name such as `lr=0.01`: what is overridden is a key of the configuration, or one within it."""
    from conf.compose.model_from import KEY as MODEL_FROM
    from conf.compose.settings import Settings

    keys = {*groups(), *Settings.model_fields, MODEL_FROM}
    return word.value is None or ("." not in word.key and word.key not in keys)
