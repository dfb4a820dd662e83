"""`trisweep cancel`: end the jobs of a sweep, or one training that was begun from it."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.arguments import OverrideTexts, SweepName, composed
from cli.console import console, shown_path

Training = Annotated[str | None, typer.Option(help="End this training from the sweep; status names them.")]


def cancel(name: SweepName, overrides: OverrideTexts = None, training: Training = None) -> None:
    """End what is queued or running of the sweep, or a training from it. Finished points keep their results."""
    from launcher.cancel import cancel_sweep, cancel_training
    from launcher.trainings import training_of
    from launcher.where import existing_folder
    from sweeps.sweep import Sweep

    folder = existing_folder(composed(name, overrides))
    if training is not None:
        job_id = cancel_training(training_of(folder.path.parent, name, training))
        console.print(f"Job {job_id} cancelled. `trisweep train --from-best {name}` goes on from its last checkpoint.")
        return
    number = cancel_sweep(Sweep.stored_in(folder))
    console.print(f"{number} trials cancelled in {shown_path(folder.path)}; finished points keep their results.")
