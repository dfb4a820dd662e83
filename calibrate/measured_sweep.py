"""The sweep whose finished trials say something about a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conf.errors import UsageError
from conf.load import load
from launcher.where import existing_folder, sweep_overrides
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder


@dataclass(frozen=True)
class MeasuredSweep:
    """Attributes:
    cluster: on which its trials ran: of a proxy, that of the proxy.
    """

    sweep: Sweep
    cluster: str


def measured_sweep(name: str, overrides: Sequence[str]) -> MeasuredSweep:
    """The sweep whose trials ran on the chosen cluster, else the one that was planned last.

    Raises:
        UsageError: there is none.
    """
    chosen = [override.split("=", 1)[1] for override in overrides if override.startswith("cluster=")]
    if not chosen:
        return _read(existing_folder(name, overrides))
    settings = load(sweep_overrides(name, overrides))
    assert settings.sweep is not None
    root = Path(settings.output_dir).absolute()
    found = [_read(folder) for folder in SweepFolder.started_in(root, f"{settings.sweep.name}-*")]
    on_it = [each for each in found if (each.sweep.record.name, each.cluster) == (settings.sweep.name, chosen[-1])]
    if not on_it:
        problem = f"No sweep {name} with trials on cluster {chosen[-1]} has been started in {root}"
        raise UsageError(problem, f"Start it with `trisweep sweep {name} cluster={chosen[-1]}`.")
    return max(on_it, key=lambda each: each.sweep.folder.record.stat().st_mtime)


def _read(folder: SweepFolder) -> MeasuredSweep:
    sweep = Sweep.stored_in(folder)
    experiment = next((trial.experiment for trial in sweep.record.trials if trial.experiment), None)
    if experiment is None:
        raise UsageError(f"{folder.path} has no trial that can exist", "Start another sweep.")
    return MeasuredSweep(sweep, experiment.cluster.name)
