"""The sweeps of one folder that have not ended, brought into MLflow while somebody looks at it.

A sweep whose jobs Slurm runs by itself has no command that could do so.
"""

from __future__ import annotations

from pathlib import Path

from conf.errors import TrisweepError
from conf.types.sites import TrackingSpec
from results.mlflow.sweep_import import import_sweep
from sweeps.sweep import Sweep, glance_at, is_settled
from sweeps.trial import SweepFolder


class UnfinishedSweeps:
    """The sweeps of a folder that belong into one store. One that had ended before stays as it is in the store."""

    def __init__(self, root: Path, store: TrackingSpec) -> None:
        self.root, self.store = root, store
        self._followed = set[Path]()
        self._ended: dict[Path, str] = {}

    def import_all(self) -> None:
        for folder in SweepFolder.started_in(self.root, "*"):
            try:
                self._import(Sweep.stored_in(folder))
            except (TrisweepError, OSError):
                continue  # the sweep's report says what is wrong

    def _import(self, sweep: Sweep) -> None:
        if sweep.record.tracking.store_identity != self.store.store_identity:
            return
        if sweep.folder.path in self._followed or not self._had_ended(sweep):
            self._followed.add(sweep.folder.path)
            import_sweep(sweep, sweep.record.tracking.signed_in_as(self.store), self.root)

    def _had_ended(self, sweep: Sweep) -> bool:
        seen = glance_at(sweep).summary
        if self._ended.get(sweep.folder.path) != seen:
            if not all(map(is_settled, sweep.read())):
                return False
            self._ended[sweep.folder.path] = seen
        return True
