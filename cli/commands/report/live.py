"""`trisweep report --live`: the report on loopback while the sweep runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cli.commands.ui import print_way_in
from cli.output.console import print_unwrapped

if TYPE_CHECKING:
    from sweeps.reading import TrialReading
    from sweeps.sweep import Sweep
    from sweeps.trial import SweepFolder

PERIOD_SECONDS = 5.0


def serve_live(folder: SweepFolder, part: Callable[[Sweep], Sweep], port: int) -> None:
    """Serve the report of a sweep until Ctrl-C; nothing is written, neither files nor MLflow.

    Args:
        part: of the sweep, the part that the report is about.
    """
    from launcher.state import reconcile
    from results.report.live import LiveReport, serve
    from sweeps.sweep import Sweep

    def read() -> tuple[Sweep, Sequence[TrialReading]]:
        sweep = part(Sweep.stored_in(folder))  # again each time, because a search adds trials
        return sweep, reconcile(sweep.read())

    def tell(line: str) -> None:
        if line.startswith("http"):
            print_unwrapped(f"Report: {line}")
            print_way_in(int(line.rstrip("/").rpartition(":")[2]))
        else:
            print_unwrapped(line)

    serve(LiveReport(read), port, PERIOD_SECONDS, tell)
