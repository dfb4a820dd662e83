"""`trisweep status`: how every trial of a sweep stands, and every training that was begun from it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from cli.command_line.arguments import AsJson, OverrideTexts, SweepName
from cli.command_line.started_sweep import started_sweep
from cli.output.console import console, heading, print_json, shown_path
from cli.output.state_document import state_document
from conf.errors import UsageError
from conf.units import count_of

if TYPE_CHECKING:
    from launcher.slurm.answers import Patience
    from sweeps.folder.history import History
    from sweeps.reading import Reading, TrialReading
    from sweeps.sweep import Sweep
    from sweeps.trial import SweepFolder

Watch = Annotated[bool, typer.Option("--watch", help="Draw it again every few seconds; Ctrl-C leaves the sweep alone.")]


def status(name: SweepName, overrides: OverrideTexts = None, watch: Watch = False, as_json: AsJson = False) -> None:
    """Show every trial: state, age, progress, cause of failure, last log line, log path."""
    from launcher.slurm.answers import Patience
    from sweeps.sweep import Sweep

    folder, composition = started_sweep(name, overrides)
    if watch:
        from cli.commands.status.watch import watch as watch_sweep

        _require_no_json(as_json)
        watch_sweep(folder, folder.read_record().name, console)
        return
    stored = Sweep.stored_in(folder)
    trials, trainings = _readings(stored, Patience(composition.settings.slurm.poll_seconds))
    if as_json:
        print_json("status", state_document(stored, trials, trainings, _history(stored)))
        return
    _print_tables(stored, trials, trainings)
    _print_allocation(folder, Patience(composition.settings.slurm.poll_seconds))


def _require_no_json(as_json: bool) -> None:
    if as_json:
        raise UsageError("--watch goes on, and --json is one document", "Give one of them.")


def _readings(stored: Sweep, patience: Patience) -> tuple[list[TrialReading], list[Reading]]:
    """Every trial of the sweep, and every training that was begun from it."""
    from launcher.state import reconcile
    from launcher.trainings import trainings_of
    from sweeps.reading import TrialReading

    trainings = [run.read() for run in trainings_of(stored.folder.path.parent, stored.record.name)]
    # They go together, because every call of Slurm's tools costs time and load on its controller.
    readings = reconcile([*stored.read(), *trainings], patience)
    trials = [each for each in readings if isinstance(each, TrialReading)]
    return trials, readings[len(trials) :]


def _history(stored: Sweep) -> History:
    """The history in the sweep's journal."""
    from sweeps.folder.history import History

    return History.kept_in(stored.folder)


def _print_tables(stored: Sweep, trials: Sequence[TrialReading], trainings: Sequence[Reading]) -> None:
    from cli.commands.status.table import state_lines, status_table
    from launcher.control.attempts import bad_nodes

    console.print(heading(stored.record.name, f" in {shown_path(stored.folder.path)}"))
    console.print(status_table(trials, console.width, by_loss="loss" in stored.record.objective))
    if keys := ", ".join(f"{name}: {key}" for name, key in stored.record.labels.legend):
        console.print(f"Names: {keys}.", style="dim", markup=False)
    for bad in bad_nodes(trials):
        failed = f"{count_of(bad.num_trials, 'trial')} failed there, the last because {bad.cause}"
        console.print(f"No further trial is given the node {bad.name}: {failed}", markup=False)
    for line in state_lines(stored):
        console.print(line)
    if trainings:
        where = shown_path(trainings[0].folder.path.parent)
        console.print(heading(f"\nTrainings from {stored.record.name}", f" in {where}"))
        console.print(status_table(trainings, console.width, by_loss=True))


def _print_allocation(folder: SweepFolder, patience: Patience) -> None:
    """Print which job carries the sweep out, if one does and Slurm answers."""
    from launcher.slurm.own_jobs import live_job

    with suppress(UsageError, OSError):  # of a sweep that is another's nothing can be written down
        if live := live_job(folder.allocation, patience):
            nodes = f" on {live.state.nodes}" if live.state.nodes else ""
            console.print(f"Trials run as steps of job {live.job_id} ({live.state.name}{nodes}).")
