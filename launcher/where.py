"""Where a sweep runs: on this machine or through Slurm, and in which folder."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conf.errors import UsageError
from conf.load import load, options
from conf.settings import Settings
from sweeps.trial import SweepFolder, SweepRecord

SLURM_PING_SECONDS = 10


@dataclass(frozen=True)
class Place:
    """Attributes:
    overrides: what composes the sweep here, complete.
    on_slurm: trials become Slurm jobs; otherwise they run on this machine.
    proxy: the stand-in is measured, the full size is predicted only.
    """

    overrides: tuple[str, ...]
    settings: Settings
    on_slurm: bool
    proxy: bool

    @property
    def folder(self) -> SweepFolder:
        return sweep_folder(self.settings, "proxy" if self.proxy else self.settings.cluster.name)


def choose_place(name: str, overrides: Sequence[str], *, here: bool, dry_run: bool) -> Place:
    """Slurm where a cluster was chosen (or only shown, with `dry_run`), else this machine.

    Raises:
        UsageError: Slurm was asked for and is not here, or it is here and no cluster was chosen.
        ConfigError: the configuration is wrong.
    """
    complete = with_slurm_of_cluster(sweep_overrides(name, overrides))
    settings = load(complete)
    assert settings.sweep is not None
    cluster_chosen = _chosen(overrides, "cluster") is not None
    on_slurm = not here and (cluster_chosen or dry_run)
    if on_slurm and not dry_run:
        _require_slurm()
    if not (on_slurm or here) and slurm_answers():
        raise UsageError(
            "This machine submits to Slurm, and no cluster was chosen",
            f"Say which with cluster=NAME (one of {', '.join(options('cluster'))}; with make: CLUSTER=NAME), or measure"
            " the proxy on this very machine with --here (with make: OPTIONS=--here).",
        )
    return Place(complete, settings, on_slurm, proxy=not on_slurm and settings.sweep.proxy is not None)


def sweep_overrides(name: str, overrides: Sequence[str]) -> tuple[str, ...]:
    return (f"sweep={name}", *overrides)


def with_slurm_of_cluster(overrides: tuple[str, ...]) -> tuple[str, ...]:
    """The Slurm settings that bear the cluster's name are taken, unless others were chosen."""
    cluster = load(overrides).cluster.name
    if cluster not in options("slurm") or _chosen(overrides, "slurm") is not None:
        return overrides
    return (*overrides, f"slurm={cluster}")


def sweep_folder(settings: Settings, place: str) -> SweepFolder:
    assert settings.sweep is not None
    return SweepFolder(Path(settings.output_dir).absolute() / f"{settings.sweep.name}-{place}")


def existing_folder(name: str, overrides: Sequence[str]) -> SweepFolder:
    """The folder of a sweep that was started: of the chosen cluster, else the one that was planned last.

    Raises:
        UsageError: there is none.
    """
    settings = load(sweep_overrides(name, overrides))
    assert settings.sweep is not None
    root = Path(settings.output_dir).absolute()
    chosen = _chosen(overrides, "cluster")
    started = SweepFolder.started_in(root, f"{settings.sweep.name}-{chosen or '*'}")
    if not started:
        where = f"{root}/{settings.sweep.name}-{chosen}" if chosen else str(root)
        again = " ".join(("trisweep sweep", name, *overrides))
        raise UsageError(f"No sweep {name} has been started in {where}", f"Start it with `{again}`.")
    return max(started, key=lambda folder: folder.record.stat().st_mtime)


def slurm_answers() -> bool:
    """True on a machine with `sbatch` whose Slurm controller answers."""
    if not shutil.which("sbatch") or not shutil.which("scontrol"):
        return False
    try:
        ping = subprocess.run(["scontrol", "ping"], capture_output=True, timeout=SLURM_PING_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    return ping.returncode == 0


def prepare_tokens(place: Place, record: SweepRecord) -> None:
    """Prepare the tokens of all trials before the first is started, so that bad data stops the sweep at once.

    Raises:
        ConfigError: the data is missing, empty or not what the configuration says it is.
    """
    from train_core.data.tokens import prepare

    chosen = [trial.experiment for trial in record.trials if trial.selected and trial.experiment]
    distinct = {(each.data, each.model, each.training, each.batch.global_batch_size): each for each in chosen}
    for experiment in distinct.values():
        configured = experiment.data.cache_dir
        prepare(experiment, Path(configured).expanduser() if configured else place.folder.tokens)


def _require_slurm() -> None:
    from launcher.slurm import require_sbatch  # with submitit, which commands that only plan need not wait for

    require_sbatch()
    if not slurm_answers():
        raise UsageError(
            "sbatch is here, but the Slurm controller does not answer `scontrol ping`",
            "Try again on a login node, add --dry-run to see the jobs, or --here to measure the proxy here.",
        )


def _chosen(overrides: Sequence[str], group: str) -> str | None:
    return next((o.split("=", 1)[1] for o in reversed(overrides) if o.startswith(f"{group}=")), None)
