"""The place where a sweep runs, this machine or Slurm, and the folder that it writes."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from conf.compose.load import Composition, compose
from conf.compose.settings import MOST_BYTES_OF_NAME, Settings
from conf.credentials import HIDDEN, has_hidden_variables
from conf.errors import ConfigError, UsageError
from conf.folders import given_words, options
from conf.overrides import Overrides, command_line
from conf.types.sites import SlurmSpec
from launcher.external_commands import ask
from sweeps.trial import SweepFolder


@dataclass(frozen=True)
class SweepPlace:
    """The place at which a sweep runs, and its whole configuration there.

    Attributes:
        proxy: the stand-in is measured, the full size is predicted only.
    """

    composition: Composition
    on_slurm: bool
    proxy: bool

    @property
    def settings(self) -> Settings:
        return self.composition.settings

    @property
    def folder(self) -> SweepFolder:
        settings, sweep = self.settings, self.settings.sweep
        assert sweep is not None
        place = "proxy" if self.proxy else settings.cluster.name
        if len(name := f"{sweep.name}-{place}") > MOST_BYTES_OF_NAME:
            problem = f"makes a folder of {len(name)} letters with {place} behind it, and file systems take 255"
            raise ConfigError("sweep.name", sweep.name, problem, "Choose a shorter name, or cluster.name.")
        return SweepFolder(Path(settings.output_dir).absolute() / name)


def choose_place(overrides: Overrides, *, here: bool, dry_run: bool) -> SweepPlace:
    """Slurm where a cluster was chosen, else this machine; with `dry_run`, which is shown anywhere, the same place.

    Raises:
        UsageError: Slurm was asked for and is not here, or no cluster was chosen where only one can be meant.
        ConfigError: the configuration is wrong.
    """
    if hidden := next((each for each in overrides if has_hidden_variables(each.text)), None):
        problem = "stands for a hidden value, and is not the value itself"
        raise ConfigError(hidden.key, HIDDEN, problem, "Give the value itself.")
    on_slurm = not here and overrides.stated_value("cluster") is not None
    composition = compose_for_slurm(overrides) if on_slurm else compose(overrides)
    assert composition.settings.sweep is not None
    if on_slurm and not dry_run:
        _require_scheduler(composition.settings.slurm)
    if not (on_slurm or here) and (elsewhere := cluster_elsewhere(composition)):
        raise UsageError(
            f"{composition.settings.sweep.name} runs on {elsewhere} through Slurm, and has no proxy for this machine",
            f"Give cluster={elsewhere} to submit it, or --here to run all of it on this very machine.",
        )
    if not (on_slurm or here) and slurm_answers():
        raise UsageError(
            "This machine submits to Slurm, and no cluster was chosen",
            "Say which with cluster=NAME (`trisweep list cluster` has all names; with make: CLUSTER=NAME), or measure"
            " the proxy on this very machine with --here (with make: OPTIONS=--here).",
        )
    if not on_slurm:
        _require_nothing_of_slurm(composition.settings)
    return SweepPlace(composition, on_slurm, proxy=not on_slurm and composition.settings.sweep.proxy is not None)


def cluster_elsewhere(composition: Composition) -> str | None:
    """The cluster of Slurm's that a sweep without a proxy names in its file; None of one that this machine measures."""
    sweep = composition.settings.sweep
    if sweep is None or sweep.proxy is not None or sweep.replay is not None:
        return None
    chosen = composition.choices
    return chosen["cluster"] if chosen["cluster"] in options("slurm") or chosen["slurm"] != "default" else None


def compose_for_slurm(overrides: Overrides) -> Composition:
    """The configuration with the Slurm settings that bear the cluster's name, unless others were chosen."""
    if overrides.stated_value("slurm") is not None:
        return compose(overrides)
    # A cluster whose name was overridden is not the one that the file of that name describes.
    named = overrides.stated_value("cluster") if "cluster.name" not in overrides.pinned_keys() else None
    if named in options("slurm"):
        overrides += Overrides.choosing("slurm", str(named))
    composition = compose(overrides)
    # Only a sweep that brings a cluster of its own is composed twice: its name is not known before.
    cluster = composition.settings.cluster.name
    if named is None and cluster in options("slurm"):
        return compose(overrides + Overrides.choosing("slurm", cluster))
    return composition


def existing_folder(composition: Composition) -> SweepFolder:
    """The folder of a sweep that was started: of the chosen cluster, else the one that was planned last.

    Raises:
        UsageError: there is none, or its record cannot be read.
    """
    overrides, settings = composition.overrides, composition.settings
    assert settings.sweep is not None
    root = Path(settings.output_dir).absolute()
    chosen = overrides.stated_value("cluster")
    folder = SweepFolder.planned_last(root, settings.sweep.name, chosen or "*")
    if folder is None:
        name = overrides.stated_value("sweep")
        where = f"{root}/{settings.sweep.name}-{chosen}" if chosen else str(root)
        again = command_line(("trisweep", "sweep", str(name), *overrides.without_choice("sweep").words, *given_words()))
        raise UsageError(f"No sweep {name} has been started in {where}", f"Start it with `{again}`.")
    return folder


def slurm_answers() -> bool:
    """True on a machine with `sbatch` whose Slurm controller answers."""
    return shutil.which("sbatch") is not None and ask("scontrol", "ping").ok


def _require_nothing_of_slurm(settings: Settings) -> None:
    """Raises ConfigError where the configuration asks for a job of Slurm and the sweep runs on this machine."""
    chosen = {"launcher": settings.launcher.kind, "controller": settings.controller.kind}
    for (key, kind), plain in zip(chosen.items(), ("jobs", "foreground"), strict=True):
        if kind != plain:
            problem = "needs Slurm, and this sweep would run on this machine"
            raise ConfigError(key, kind, problem, f"Choose a cluster with cluster=NAME, or use {key}={plain}.")


def _require_scheduler(slurm: SlurmSpec) -> None:
    # With submitit, which commands that only plan need not wait for.
    from launcher.slurm.pbs import require_scheduler

    require_scheduler(slurm)
    if slurm.scheduler != "pbs" and not slurm_answers():
        remedy = "Try again on a login node, add --dry-run to see the jobs, or --here to measure the proxy here."
        raise UsageError("sbatch is here, but the Slurm controller does not answer `scontrol ping`", remedy)
