"""`trisweep status`: how every trial of a sweep stands, and every training that was begun from it."""

from __future__ import annotations

from cli.arguments import OverrideTexts, SweepName, composed
from cli.console import console, headed, shown_path


def status(name: SweepName, overrides: OverrideTexts = None) -> None:
    """Show every trial: state, progress, cause of failure, last log line, log path."""
    from cli.status_table import status_table
    from launcher.slurm_answers import Patience
    from launcher.state import reconciled
    from launcher.trainings import trainings_of
    from launcher.where import existing_folder
    from sweeps.sweep import Sweep

    asked = composed(name, overrides)
    stored = Sweep.stored_in(existing_folder(asked))
    trainings = trainings_of(stored.folder.path.parent, name)
    trials = stored.read()
    # Trials and trainings go together, because every call of Slurm's tools costs time and load on its controller.
    patience = Patience(asked.settings.slurm.poll_seconds)
    readings = reconciled([*trials, *(run.read() for run in trainings)], patience)
    console.print(headed(stored.record.name, f" in {shown_path(stored.folder.path)}"))
    console.print(status_table(readings[: len(trials)], console.width))
    if trainings:
        where = shown_path(trainings[0].folder.path.parent)
        console.print(headed(f"\nTrainings from {stored.record.name}", f" in {where}"))
        console.print(status_table(readings[len(trials) :], console.width))
