"""MLflow follows sweeps while they run: a process of its own imports, so that no command waits for MLflow.

Run as a program, this brings MLflow up to date again and again, beside the command that runs or shows a sweep. Its
argument is the sweep's folder, or a folder of sweeps, of which those are followed that have not ended. Standard input
is a pipe whose other end that command holds: its first line is the `TrackingSpec`, which may hold a password, and it
ends when the command does. Nothing is loaded before the first import is due, so that a short sweep pays for none.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conf.types.sites import TrackingSpec
    from sweeps.sweep import Sweep

LOWEST_PRIORITY = 19
STOP_SECONDS = 5.0


@contextmanager
def followed_in_mlflow(folder: Path, tracking: TrackingSpec) -> Iterator[None]:
    """While the block runs, its sweep is imported every `tracking.live_seconds`; not at all where that is null.

    Args:
        folder: of the sweep, or of sweeps, of which those are imported that have not ended.
    """
    if tracking.live_seconds is None:
        yield
        return
    from train_core.process.git_sha import variables_of

    # In a session of its own, so that a Ctrl-C is the command's alone.
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(folder.absolute())],
        env={**os.environ, **variables_of()},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(tracking.model_dump_json() + "\n")
    process.stdin.flush()
    try:
        yield
    finally:
        # An import that is cut short is completed by the next one, which the command makes itself.
        process.terminate()
        process.stdin.close()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def follow(folder: Path, tracking: dict[str, Any]) -> None:
    """Import every `live_seconds` until standard input ends."""
    os.nice(LOWEST_PRIORITY)  # trials that are measured on this machine come first
    bring_up_to_date: Callable[[], None] | None = None
    while not select.select([sys.stdin], [], [], tracking["live_seconds"])[0]:
        if bring_up_to_date is None:
            from conf.types.sites import TrackingSpec

            bring_up_to_date = import_of(folder, TrackingSpec.model_validate(tracking))
        bring_up_to_date()


def import_of(folder: Path, store: TrackingSpec) -> Callable[[], None]:
    """Return a function that brings the sweep, or all sweeps that have not ended, up to date in the store."""
    from sweeps.trial import SweepFolder

    if not SweepFolder(folder).record.exists():
        return UnfinishedSweeps(folder, store).import_all

    def import_one() -> None:
        from conf.errors import TrisweepError
        from results.mlflow.sweep_import import import_sweep
        from sweeps.sweep import Sweep

        with suppress(TrisweepError, FileNotFoundError):  # the import at the end of the sweep says what is wrong
            import_sweep(Sweep.stored_in(SweepFolder(folder)), store.while_running(), folder.parent)

    return import_one


class UnfinishedSweeps:
    """The sweeps of a folder that belong into one store. One that had ended before stays as it is in the store.

    A sweep whose jobs Slurm runs by itself has no command that could import it.
    """

    def __init__(self, root: Path, store: TrackingSpec) -> None:
        self.root, self.store = root, store
        self._followed = set[Path]()
        self._ended: dict[Path, str] = {}

    def import_all(self) -> None:
        from conf.errors import TrisweepError
        from results.mlflow.sweep_import import import_sweep
        from sweeps.sweep import Sweep
        from sweeps.trial import SweepFolder

        for folder in SweepFolder.started_in(self.root, "*"):
            with suppress(TrisweepError, OSError):  # the sweep's report says what is wrong
                sweep = Sweep.stored_in(folder)
                tracking = sweep.record.tracking
                is_ours = tracking.store_identity == self.store.store_identity
                if is_ours and (folder.path in self._followed or not self._had_ended(sweep)):
                    self._followed.add(folder.path)
                    import_sweep(sweep, tracking.signed_in_as(self.store).while_running(), self.root)

    def _had_ended(self, sweep: Sweep) -> bool:
        from sweeps.sweep import glance_at, is_settled

        seen = glance_at(sweep).summary
        if self._ended.get(sweep.folder.path) != seen:
            if not all(map(is_settled, sweep.read())):
                return False
            self._ended[sweep.folder.path] = seen
        return True


if __name__ == "__main__":
    follow(Path(sys.argv[1]), json.loads(sys.stdin.readline()))
