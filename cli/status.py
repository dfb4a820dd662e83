"""`trisweep status`: how every trial of a sweep stands, and every training that was begun from it."""

from __future__ import annotations

from cli.arguments import OverrideTexts, Sweep, composed
from cli.console import console, headed, shown_path


def status(name: Sweep, overrides: OverrideTexts = None) -> None:
    """Every trial: state, progress, cause of failure, last log line, log path."""
    from cli.status_table import status_table
    from launcher.state import reconcile, trial_state, trial_states
    from launcher.trainings import trainings_of
    from launcher.where import existing_folder

    folder = existing_folder(composed(name, overrides))
    record, trainings = folder.read_record(), trainings_of(folder.path.parent, name)
    jobs = reconcile([*folder.trials_of(record), *(run.folder for run in trainings)])
    console.print(headed(record.name, f" in {shown_path(folder.path)}"))
    console.print(status_table(trial_states(folder, record, jobs), console.width))
    if trainings:
        states = [trial_state(run.folder, run.trial, jobs.get(run.folder.path)) for run in trainings]
        where = shown_path(trainings[0].folder.path.parent)
        console.print(headed(f"\nTrainings from {record.name}", f" in {where}"))
        console.print(status_table(states, console.width))
