"""The sweep whose finished trials say something about a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from conf.compose.load import Composition
from conf.errors import TrisweepError, UsageError
from launcher.where import existing_folder
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder


@dataclass(frozen=True)
class MeasuredSweep:
    """A sweep and where it was measured.

    Attributes:
        cluster: the one on which its trials ran, which for a proxy is not the sweep's own.
    """

    sweep: Sweep
    cluster: str


def measured_sweep(composition: Composition) -> MeasuredSweep:
    """The sweep whose trials ran on the chosen cluster, else the one that was planned last.

    Raises:
        UsageError: there is none, or the only one cannot be read.
    """
    settings, chosen = composition.settings, composition.overrides.stated_value("cluster")
    if chosen is None:
        return _measured_sweep_in(existing_folder(composition))
    assert settings.sweep is not None
    root, name = Path(settings.output_dir).absolute(), settings.sweep.name
    # Folders are named for people: of a proxy only the record says on which cluster it ran.
    sweeps: list[MeasuredSweep] = []
    unreadable: list[TrisweepError] = []
    for folder in SweepFolder.started_in(root, f"{name}-*"):
        try:
            sweeps.append(_measured_sweep_in(folder))
        except TrisweepError as error:  # of a folder that may be another sweep's
            unreadable.append(error)
    on_it = [each for each in sweeps if (each.sweep.record.name, each.cluster) == (name, chosen)]
    if not on_it:
        if unreadable:
            raise unreadable[0]
        problem = f"No sweep {name} with trials on cluster {chosen} has been started in {root}"
        raise UsageError(problem, f"Start it with `trisweep sweep {name} cluster={chosen}`.")
    return max(on_it, key=_preference)


def _preference(measured: MeasuredSweep) -> tuple[bool, float]:
    folder = measured.sweep.folder
    return folder.is_own_of(measured.sweep.record), folder.time_of_plan()


def _measured_sweep_in(folder: SweepFolder) -> MeasuredSweep:
    sweep = Sweep.stored_in(folder)
    experiment = next((trial.experiment for trial in sweep.record.trials if trial.experiment), None)
    if experiment is None:
        raise UsageError(f"{folder.path} has no trial that can exist", "Start another sweep.")
    return MeasuredSweep(sweep, experiment.cluster.name)
