"""`trisweep status`: how every trial of a sweep stands, and every training that was begun from it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import AsJson, OverrideTexts, SweepName
from cli.output.console import SILENT, bar, complaints, console, heading, print_json, print_unwrapped, shown_path
from cli.output.next_command import next_command
from cli.started_sweep import started_sweep, state_document
from conf.errors import UsageError
from conf.units import count_of

if TYPE_CHECKING:
    from sweeps.reading import Reading, TrialReading
    from sweeps.sweep import Sweep

Watch = Annotated[bool, typer.Option("--watch", help="Draw it again every few seconds; Ctrl-C leaves the sweep alone.")]


def status(name: SweepName, overrides: OverrideTexts = None, watch: Watch = False, as_json: AsJson = False) -> None:
    """Show every trial: state, age, progress, cause of failure, last log line, log path."""
    from launcher.long_run import trainings_of
    from launcher.slurm.reconcile import reconcile
    from sweeps.reading import TrialReading
    from sweeps.sweep import Sweep

    folder, composition = started_sweep(name, overrides)
    if watch:
        from cli.output.status_table import watch as watch_sweep

        if as_json:
            raise UsageError("--watch goes on, and --json is one document", "Give one of them.")
        watch_sweep(folder, folder.read_record().name, console)
        return
    stored, patience = Sweep.stored_in(folder), composition.settings.slurm.poll_seconds
    begun = [run.read() for run in trainings_of(folder.path.parent, stored.record.name)]
    # They go together, because every call of Slurm's tools costs time and load on its controller.
    with bar("Seeing how trials stand") as tell:
        readings = reconcile([*stored.read(), *begun], patience, lambda: complaints.print(SILENT), tell)
    trials = [each for each in readings if isinstance(each, TrialReading)]
    trainings = readings[len(trials) :]
    if as_json:
        print_json("status", state_document(stored, trials, trainings))
        return
    _print_tables(stored, trials, trainings)
    for line in job_lines(stored, patience):
        print_unwrapped(line)


def _print_tables(stored: Sweep, trials: Sequence[TrialReading], trainings: Sequence[Reading]) -> None:
    from cli.output.status_table import state_lines, status_table
    from launcher.control.attempts import bad_nodes
    from launcher.long_run import damaged_trainings

    console.print(heading(stored.record.name, f" in {shown_path(stored.folder.path)}"))
    console.print(status_table(trials, console.width, sought=stored.record.objective))
    if keys := ", ".join(f"{name}: {key}" for name, key in stored.record.labels.legend):
        console.print(f"Names: {keys}.", style="dim", markup=False)
    for bad in bad_nodes(trials):
        failed = f"{count_of(bad.num_trials, 'trial')} failed there, the last because {bad.cause}"
        console.print(f"No further trial is given the node {bad.name}: {failed}", markup=False)
    for line in state_lines(stored, trials):
        console.print(line)
    if trainings:
        where = shown_path(trainings[0].folder.path.parent)
        console.print(heading(f"\nTrainings from {stored.record.name}", f" in {where}"))
        console.print(status_table(trainings, console.width, sought=("loss",)))
    for damaged in damaged_trainings(stored.folder.path.parent):
        print_unwrapped(
            f"{shown_path(damaged.trial)} is damaged, so the sweep that this training belongs to is not known."
        )


def job_lines(sweep: Sweep, patience: float) -> list[str]:
    """A line for each job that carries the sweep out, as far as Slurm says how it stands."""
    from launcher.slurm.job_status import live_job
    from sweeps.folder.journal import History
    from sweeps.folder.submission import read_submission

    lines, history = list[str](), History.kept_in(sweep.folder)
    with suppress(UsageError, OSError):  # of a sweep that is another's nothing can be written down
        if live := live_job(sweep.folder.allocation, patience):
            nodes = f" on {live.state.nodes}" if live.state.nodes else ""
            lines.append(f"Trials run as steps of job {live.job_id} ({live.state.name}{nodes}).")
    controller = read_submission(sweep.folder.controller)
    if controller is not None and not (history.finished or history.is_cancelled):
        how = _how_controller_stands(sweep, patience)
        lines.append(f"Controller: job {controller.job_id or controller.job_name}{how}.")
    return lines


def _how_controller_stands(sweep: Sweep, patience: float) -> str:
    from launcher.folder_lock import holder
    from launcher.slurm.job_status import live_job

    try:
        live = live_job(sweep.folder.controller, patience)
    except (UsageError, OSError):
        return "; how it stands is not known here"
    if live is None:
        other = holder(sweep.folder)
        again = f"`{next_command('resume', sweep)}` submits it again"
        return f" has ended; {f'{other} goes on with the sweep' if other else again}"
    if live.state.name == "RUNNING":
        return "; it goes on with the sweep"
    said = ", ".join(
        word for word in (live.state.cause or live.state.name, live.state.reason) if word not in ("", "None")
    )
    return f" ({said}){'; it goes on with the sweep once it starts' if live.state.is_waiting else ''}"
