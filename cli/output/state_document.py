"""The state of a sweep as `status --json` has it, which commands that change a sweep answer with, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cli.output.console import print_json

if TYPE_CHECKING:
    from sweeps.reading import Reading, TrialReading
    from sweeps.sweep import Sweep
    from sweeps.trial import SweepFolder


def state_document(sweep: Sweep, trials: Sequence[TrialReading], trainings: Sequence[Reading]) -> dict[str, Any]:
    """The document of `status`, with the nodes that no further trial is given."""
    from launcher.control.attempts import bad_nodes
    from results.documents import status_document
    from sweeps.folder.journal import History

    history = History.kept_in(sweep.folder)
    return status_document(sweep, trials, trainings, history, {bad.name: bad.cause for bad in bad_nodes(trials)})


def print_state(document: str, folder: SweepFolder, **done: Any) -> None:
    """Print the document of a command that has changed the sweep in this folder.

    Args:
        done: what the command did, beside how the sweep stands.
    """
    from launcher.state import reconcile
    from sweeps.sweep import Sweep

    sweep = Sweep.stored_in(folder)
    print_json(document, state_document(sweep, reconcile(sweep.read()), []) | done)
