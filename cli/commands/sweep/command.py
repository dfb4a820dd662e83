"""`trisweep sweep`: plan, measure and report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import AsJson, ShowConfig, complete_sweep, composed, overrides_of, print_config
from conf.errors import ConfigError, UsageError
from conf.overrides import Overrides

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME] [KEY=VALUE]...",
        help="A sweep of `trisweep list sweep`, such as 175b, or one begun before; then Hydra overrides. With"
        " --command: lr=1e-4..1e-1:log batch=4,8,16 for its names in braces, and for jobs cluster=NAME gpus=1 nodes=1"
        " minutes=30.",
        autocompletion=complete_sweep,
        show_default=False,
    ),
]
Command = Annotated[
    str | None,
    typer.Option(
        help="Sweep this program, without a file: 'python fit.py --lr {lr} --batch {batch}'. It prints `loss: 2.1` or"
        " JSON lines.",
        show_default=False,
    ),
]
Objective = Annotated[
    list[str] | None,
    typer.Option(
        help="What is sought, the lowest: loss, or any name that the program prints. Several make a front.",
        show_default=False,
    ),
]
Maximize = Annotated[bool, typer.Option("--maximize", help="Seek the highest instead.")]
Trials = Annotated[int | None, typer.Option(help="At most N trials; a search chooses if the values make more.", min=1)]
Save = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write the sweep of --command to this file, such as conf/sweep/fit.yaml, and stop.",
        show_default=False,
    ),
]
Here = Annotated[bool, typer.Option("--here", help="Measure on this machine even where Slurm is.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what the same command does; start, submit and write nothing.")
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Run again what failed or timed out.")]
Remeasure = Annotated[bool, typer.Option("--remeasure", help="Measure again what is measured; earlier runs stay.")]
FailFast = Annotated[int | None, typer.Option(help="Stop once N trials have failed.", min=1)]


def sweep(
    words: Words = None,
    command: Command = None,
    objective: Objective = None,
    maximize: Maximize = False,
    trials: Trials = None,
    save: Save = None,
    dry_run: DryRun = False,
    here: Here = False,
    retry_failed: RetryFailed = False,
    remeasure: Remeasure = False,
    fail_fast: FailFast = None,
    cfg: ShowConfig = False,
    as_json: AsJson = False,
) -> None:
    """Plan, measure and report: through Slurm with cluster=NAME, else a small proxy on this machine.

    The same command continues a sweep that was interrupted, and never runs a finished point twice. On this machine the
    leaders are measured up to search.max_rounds times, in turn, until they can be told apart.

    A script needs no file: trisweep sweep --command 'python fit.py --lr {lr}' lr=1e-4..1e-1:log --trials 24
    """
    overrides = asked_overrides(words or [], command, objective or [], trials, maximize=maximize)
    if fail_fast is not None:
        overrides += Overrides.parse([f"controller.fail_fast={fail_fast}"])
    if save is not None:
        _save(save, overrides, is_script=command is not None, dry_run=dry_run)
    elif cfg:
        print_config(composed(overrides))
    else:
        from cli.commands.sweep.run import run_sweep

        with _by_its_flag(command):
            run_sweep(
                overrides,
                dry_run=dry_run,
                here=here,
                retry_failed=retry_failed,
                remeasure=remeasure,
                as_json=as_json,
            )


@contextmanager
def _by_its_flag(command: str | None) -> Iterator[None]:
    """Within it, an error of the program's command names the flag that gave it."""
    try:
        yield
    except ConfigError as error:
        if command is None or not error.key.startswith(("trainer.command", "trainer.flags")):
            raise
        raise ConfigError("--command", command, error.problem, error.remedy) from None


def _sought(objectives: list[str], maximize: bool, command: str | None) -> list[str]:
    from conf.compose.script_sweep import objective_overrides

    if maximize and not objectives:
        raise UsageError("--maximize needs an objective", "Name it, as in --objective val_accuracy --maximize.")
    return objective_overrides(objectives, maximize=maximize, is_script=command is not None)


def asked_overrides(
    words: list[str], command: str | None, objectives: list[str], trials: int | None, *, maximize: bool
) -> Overrides:
    """The overrides of the whole command line; of a sweep with a file, or of one without.

    Raises UsageError where no sweep is named, and ConfigError where a value of a script is wrong.
    """
    sought = _sought(objectives, maximize, command)
    is_named = bool(words) and "=" not in words[0] and not words[0].startswith(("+", "~"))
    if command is None:
        if not is_named:
            remedy = "Name one of `trisweep list sweep`, or give --command 'python fit.py --lr {lr}' lr=1e-4..1e-1:log."
            raise UsageError("No sweep is named" + (f" before {words[0]}" if words else ""), remedy)
        most = [] if trials is None else [f"sweep.max_trials={trials}"]
        return overrides_of(words[0], [*words[1:], *sought, *most])
    from conf.compose.script_sweep import objective_overrides, script_sweep

    found = script_sweep(command, words[is_named:], words[0] if is_named else None)
    if not sought and found.others.stated_value("search.objective") is None:
        sought = objective_overrides(["loss"], maximize=False, is_script=True)
    return found.overrides(sought, trials)


def _save(path: Path, overrides: Overrides, *, is_script: bool, dry_run: bool) -> None:
    from cli.output.console import console, print_unwrapped, shown_path
    from conf.compose.script_sweep import save_script_sweep

    if not is_script:
        raise UsageError(f"--save {path} writes the sweep of --command, which was not given", "Add --command PROGRAM.")
    text, command = save_script_sweep(path, overrides, dry_run=dry_run)
    if dry_run:
        typer.echo(text, nl=False)
        return
    console.print(f"Written: {shown_path(path)}. It gives the same sweep:")
    print_unwrapped(f"  {command}")
