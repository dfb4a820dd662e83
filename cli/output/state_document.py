"""The `--json` answer of commands that change a sweep: its state then, as in `status`, and what was done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cli.output.console import print_json

if TYPE_CHECKING:
    from sweeps.trial import SweepFolder


def print_state(document: str, folder: SweepFolder, **done: Any) -> None:
    """Print the document of a command that has changed the sweep in this folder.

    Args:
        done: what the command did, beside how the sweep stands.
    """
    from launcher.state import reconcile
    from results.documents import status_document
    from sweeps.folder.history import History
    from sweeps.sweep import Sweep

    sweep = Sweep.stored_in(folder)
    print_json(document, status_document(sweep, reconcile(sweep.read()), [], History.kept_in(folder)) | done)
