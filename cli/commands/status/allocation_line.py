"""The lines of `trisweep status` about the allocation in which a sweep is carried out."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from cli.output.console import console
from conf.errors import UsageError

if TYPE_CHECKING:
    from launcher.slurm.answers import Patience
    from sweeps.trial import SweepFolder


def print_allocation(folder: SweepFolder, patience: Patience) -> None:
    """Print which job carries the sweep out, if one does and Slurm answers."""
    from launcher.allocation.folder import live_allocation

    with suppress(UsageError):
        if (live := live_allocation(folder, patience)) and live.state:
            nodes = f" on {live.state.nodes}" if live.state.nodes else ""
            console.print(f"Trials run as steps of job {live.submission.job_id} ({live.state.name}{nodes}).")
