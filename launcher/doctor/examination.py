"""One look at a site, part after part: this machine, Slurm, and the nodes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conf.errors import TrisweepError
from conf.folders import options
from conf.overrides import Overrides
from launcher.doctor.finding import CheckResult
from launcher.doctor.machine import machine_findings
from launcher.doctor.node_checks import NODES, node_findings
from launcher.doctor.node_report import DoctorFolder
from launcher.doctor.slurm_checks import SLURM, slurm_findings
from launcher.doctor.tiny_job import Tell, TinyJob
from launcher.folder_lock import lock_folder
from launcher.where import compose_for_slurm


@dataclass(frozen=True)
class Examination:
    """The configuration that the doctor examines.

    Attributes:
        job: the doctor's own, with the settings that it is about.
        chosen: a cluster was named; otherwise the defaults are looked at.
    """

    job: TinyJob
    output_dir: Path
    chosen: bool
    with_job: bool

    @classmethod
    def of(cls, overrides: Overrides, *, with_job: bool) -> Examination:
        """Raises ConfigError where the configuration is wrong."""
        settings = compose_for_slurm(overrides).settings
        chosen = overrides.stated_value("cluster") is not None
        output_dir = Path(settings.output_dir).absolute()
        folder = DoctorFolder(output_dir / f"doctor-{settings.cluster.name}")
        return cls(TinyJob(settings.slurm, settings.cluster, folder), output_dir, chosen, with_job)

    @property
    def has_slurm(self) -> bool:
        return self.chosen or shutil.which("sbatch") is not None


def examine(examination: Examination, tell: Tell) -> Iterator[CheckResult]:
    """Look, and tell each finding as soon as it is known."""
    results: list[CheckResult] = []
    for finding in machine_findings(
        examination.output_dir, with_slurm=examination.has_slurm, with_job=examination.with_job
    ):
        results.append(finding)
        yield finding
    if not examination.has_slurm:
        says = "there is no sbatch on the PATH: sweeps run on this machine alone"
        yield SLURM.skip("Slurm", says, "On a login node, give cluster=NAME.")
        return
    if not examination.chosen:
        remedy = f"Give cluster=NAME, one of {', '.join(options('cluster'))}, or write its file (docs/slurm.md)."
        yield SLURM.warning("cluster", "none was named, so that the default settings are looked at", remedy)
    for finding in slurm_findings(examination.job):
        results.append(finding)
        yield finding
    yield from _nodes(examination, results, tell)


def _nodes(examination: Examination, results: list[CheckResult], tell: Tell) -> Iterator[CheckResult]:
    in_the_way = [finding.name for finding in results if finding.status == "problem"]
    if examination.job.slurm.scheduler == "pbs":
        yield NODES.skip("job", "the doctor's job is one of Slurm's")
    elif not examination.with_job:
        yield NODES.skip("job", "left out, as --no-job says")
    elif in_the_way:
        yield NODES.skip("job", f"not submitted before this is solved: {', '.join(in_the_way)}")
    else:
        try:
            with lock_folder(examination.job.folder):
                end = examination.job.run(tell)
        except TrisweepError as error:
            yield NODES.problem("job", str(error), "Solve that first.")
            return
        yield from node_findings(end, examination.job.cluster)
