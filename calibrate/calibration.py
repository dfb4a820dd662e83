"""Calibrating a cluster: which job measures it, and how its rates become a new cluster file."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from calibrate.cluster_file import (
    LINKS,
    Change,
    cluster_path,
    replace_cluster_file,
    require_writable,
    rewrite,
    with_links,
)
from calibrate.measured_changes import machine_of, measured_changes, unmeasured_notes
from calibrate.rates_job import Here, InSlurm, Tell
from conf.compose.load import load_cluster, require_name
from conf.compose.settings import Settings
from conf.errors import UsageError
from conf.overrides import Overrides
from conf.types.cluster_spec import ClusterSpec
from conf.yaml_text import file_text
from launcher.folder_lock import lock_folder
from launcher.local.machine import this_machine
from launcher.where import compose_for_slurm, slurm_answers
from rates.plan import rates_plan
from rates.record import DeviceRates, RatesFolder, RatesPlan
from sweeps.folder.submission import JobShape

DEFAULT_NODES = 2
"""Two nodes are the fewest whose ranks meet over the network."""


@dataclass(frozen=True)
class Calibration:
    """One calibration before it is measured; its cluster is as its file says, as the file's values are replaced."""

    settings: Settings
    cluster: ClusterSpec
    output: str
    executor: Here | InSlurm
    shape: JobShape
    plan: RatesPlan

    @property
    def folder(self) -> RatesFolder:
        return RatesFolder(Path(self.settings.output_dir).absolute() / f"calibrate-{self.cluster.name}")

    @property
    def request(self) -> str | None:
        """The text that sbatch would get; None where no Slurm is involved."""
        return self.executor.request(self.folder)


@dataclass(frozen=True)
class Draft:
    """A cluster file that is not yet written."""

    cluster: ClusterSpec
    output: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    text: str

    def write(self) -> Path:
        """Put the file in its place, if it composes."""
        return replace_cluster_file(self.cluster, self.output, self.text, self.changes)


def choose_calibration(
    overrides: Overrides, output: str | None, num_nodes: int | None, *, here: bool, dry_run: bool
) -> Calibration:
    """Decide where to measure: through Slurm where it answers, unless `here` was said, else on this machine.

    With `dry_run` a cluster of several nodes is taken for one with Slurm, so that its job can be shown anywhere.

    Raises:
        UsageError: no cluster was named, the result could not be written, or its devices are not here.
        ConfigError: the configuration is wrong.
    """
    name = overrides.stated_value("cluster")
    if name is None:
        remedy = "Give cluster=NAME; `trisweep list cluster` has all names."
        raise UsageError("No cluster was named, so there is no file to write", remedy)
    settings = compose_for_slurm(overrides).settings
    output = name_to_write(name, output)
    on_slurm = not here and ((dry_run and settings.cluster.num_nodes > 1) or slurm_answers())
    place = _slurm_shape(settings.cluster, num_nodes) if on_slurm else _shape_here(settings.cluster, num_nodes)
    kind: Literal["gpu", "cpu"] = "gpu" if place.uses_gpus else "cpu"
    plan = rates_plan(settings.cluster, kind, place.num_nodes * place.tasks_per_node)
    # Minutes of measuring would be lost if it only turned out afterwards that the file cannot be written.
    if not dry_run:
        require_writable(name, output)
    executor = InSlurm(settings.slurm, place) if on_slurm else Here()
    return Calibration(settings, load_cluster(name), output, executor, place, plan)


def name_to_write(name: str, output: str | None) -> str:
    require_name("--output", output)
    return output or name


def measure(calibration: Calibration, tell: Tell) -> DeviceRates:
    """Measure on the devices, and return when all is measured; Ctrl-C ends it.

    Raises:
        UsageError: it failed, or another calibration of this cluster is running.
        KeyboardInterrupt: Ctrl-C; nothing goes on.
    """
    with lock_folder(calibration.folder):
        return calibration.executor.measure(calibration.folder, calibration.plan, tell)


def draft_of_rates(cluster: ClusterSpec, output: str, rates: DeviceRates) -> Draft:
    """The cluster file with everything that was measured."""
    stamp = stamp_of(rates.finished)
    changes = measured_changes(cluster, rates, stamp)
    return draft(cluster, output, changes, unmeasured_notes(cluster, rates), stamp, machine_of(rates))


def draft(
    cluster: ClusterSpec, output: str, changes: Sequence[Change], notes: Sequence[str], stamp: str, machine: str
) -> Draft:
    """The file with `changes` under the name `output`; its comments say when and where they were measured."""
    # Tables of configurations name a GPU, which has to mean a single cluster, so a copy gives up the names.
    named = [Change(("name",), None, output), Change(("gpu_names",), None, ())] if output != cluster.name else []
    # A remark that tells how to calibrate the file names it, and is copied with it.
    text = re.sub(
        rf"(#.*\bcluster=){re.escape(cluster.name)}(?![\w.-])", rf"\g<1>{output}", file_text(cluster_path(cluster.name))
    )
    if any(change.path[0] == LINKS for change in changes):
        text = with_links(text, cluster)
    every = [*named, *changes]
    return Draft(cluster, output, tuple(every), tuple(notes), rewrite(text, every, stamp, machine))


def stamp_of(seconds: float) -> str:
    """The time in UTC, to the minute. It also tells apart the calibrations that the comments of a file refer to."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _slurm_shape(cluster: ClusterSpec, num_nodes: int | None) -> JobShape:
    num_nodes = num_nodes or min(DEFAULT_NODES, cluster.num_nodes)
    if num_nodes > cluster.num_nodes:
        raise UsageError(f"--nodes {num_nodes} is more than the {cluster.num_nodes} of {cluster.name}", "Use fewer.")
    uses_gpus = cluster.device.kind == "gpu"
    return JobShape(num_nodes=num_nodes, tasks_per_node=cluster.devices_per_node, uses_gpus=uses_gpus)


def _shape_here(cluster: ClusterSpec, num_nodes: int | None) -> JobShape:
    """A rank for every GPU of this machine, or for every core, as far as the cluster's nodes have devices."""
    machine = this_machine()
    if num_nodes is not None and num_nodes > 1:
        problem = f"--nodes {num_nodes} was asked for, but this is a single machine"
        raise UsageError(problem, "Leave it out, or use Slurm.")
    if cluster.device.kind == "gpu" and not machine.num_devices:
        problem = f"The devices of {cluster.name} are GPUs ({cluster.device.name}), but this machine has none"
        raise UsageError(problem, "Run this on its login node, where Slurm answers, or on one of its nodes.")
    ranks = min(machine.num_devices or machine.num_cores, cluster.devices_per_node)
    return JobShape(num_nodes=1, tasks_per_node=ranks, uses_gpus=machine.num_devices > 0)
