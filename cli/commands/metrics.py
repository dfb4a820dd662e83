"""`trisweep metrics`: how all sweeps stand, in Prometheus' text format."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import OverrideTexts, composition_of
from cli.output.console import complaints
from conf.credentials import hide_credentials
from conf.errors import TrisweepError, UsageError

if TYPE_CHECKING:
    from results.tables.prometheus import SweepState
    from sweeps.trial import SweepFolder

Out = Annotated[
    Path | None,
    typer.Option(help="A file of the folder that node_exporter's textfile collector reads; it must end in .prom."),
]


def metrics(overrides: OverrideTexts = None, out: Out = None) -> None:
    """Print the state of all sweeps in output_dir as gauges for Prometheus, or write them into a file."""
    from conf.private_files import shared_as_usual
    from results.tables.prometheus import gauges_text
    from sweeps.trial import SweepFolder
    from train_core.trial.atomic import write_atomically

    if out is not None and out.suffix != ".prom":
        raise UsageError(f"--out = '{out}': node_exporter reads only files that end in .prom", f"Give {out.stem}.prom.")
    if out is not None and not out.parent.is_dir():
        raise UsageError(f"--out = '{out}': there is no folder {out.parent}", "Name the one that node_exporter reads.")
    settings = composition_of(None, overrides).settings
    patience = settings.slurm.poll_seconds
    folders = SweepFolder.started_in(Path(settings.output_dir).absolute(), "*")
    states = [state for folder in sorted(folders, key=lambda each: each.path) if (state := _state(folder, patience))]
    text = gauges_text(states, num_unreadable=len(folders) - len(states))
    if out is None:
        sys.stdout.write(text)
        return
    with shared_as_usual():  # node_exporter is another user; a file that is there keeps who may read it
        out.touch()
        write_atomically(out, text)


def _state(folder: SweepFolder, patience: float) -> SweepState | None:
    """The state of the sweep; None and a word on stderr where it cannot be read, as the others must be seen."""
    from launcher.slurm.reconcile import reconcile
    from results.tables.prometheus import SweepState
    from sweeps.folder.journal import History
    from sweeps.sweep import Sweep

    try:
        sweep = Sweep.stored_in(folder)
        return SweepState(sweep, reconcile(sweep.read(), patience), History.kept_in(folder))
    except (TrisweepError, OSError) as error:
        complaints.print(hide_credentials(f"{folder.path.name} is left out: {error}"), markup=False)
        return None
