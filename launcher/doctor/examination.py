"""One look at a site, part after part: this machine, Slurm, and what the nodes of the doctor's job reported."""

from __future__ import annotations

import fcntl
import os
import platform
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from conf.errors import TrisweepError
from conf.overrides import Overrides
from conf.types.cluster_spec import ClusterSpec
from conf.units import GIBIBYTE, GIGA, count_of
from launcher.doctor.node_report import CheckResult, DoctorFolder, Findings, NodeReport
from launcher.doctor.slurm_checks import SLURM, slurm_findings
from launcher.doctor.tiny_job import JobEnd, Tell, TinyJob
from launcher.external_commands import ask
from launcher.folder_lock import lock_folder
from launcher.local.machine import this_machine
from launcher.where import compose_for_slurm

TORCH_SECONDS = 60
"""Importing torch from a busy network file system can take most of a minute."""

LITTLE_BYTES = 10 * GIBIBYTE
PROBE_BYTES = 2**20
SHARED_SYSTEMS = frozenset({"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "cifs", "panfs", "wekafs"})
"""File systems that several machines see, by their names in /proc/mounts."""

MACHINE = Findings("this machine")
NODES = Findings("nodes")
LOW_SHARE = 0.5
"""A link that reaches less than this share of what the cluster's file says is worth a warning."""


@dataclass(frozen=True)
class Examination:
    """The doctor's own job with the settings that it is about; `chosen` is False where no cluster was named."""

    job: TinyJob
    output_dir: Path
    chosen: bool
    with_job: bool

    @classmethod
    def of(cls, overrides: Overrides, *, with_job: bool) -> Examination:
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
        remedy = "Give cluster=NAME (`trisweep list cluster` has all names), or write its file (docs/slurm.md)."
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


def node_findings(end: JobEnd, cluster: ClusterSpec) -> Iterator[CheckResult]:
    if end.trouble:
        status = NODES.problem if end.reports or end.seconds_in_queue is not None else NODES.warning
        yield status("job", f"job {end.job_id}: {end.trouble}", end.remedy)
    else:
        waited = "" if end.seconds_in_queue is None else f", started after {end.seconds_in_queue:.0f} s"
        yield NODES.ok("job", f"job {end.job_id} on {_names(end.reports)}{waited}")
    if not end.reports:
        return
    yield _shared_folder(end)
    yield _python(end.reports)
    yield _torch(end.reports)
    imported = [report for report in end.reports if report.torch_version]
    if imported:
        yield from _devices(imported, cluster)
        yield from _link(imported, cluster)


def _names(reports: Sequence[NodeReport]) -> str:
    return ", ".join(sorted({report.hostname for report in reports}))


def _shared_folder(end: JobEnd) -> CheckResult:
    blind = [report for report in end.reports if report.token != end.token]
    if blind:
        remedy = "Choose a folder that login and compute nodes share: output_dir=PATH"
        return NODES.problem("shared folder", f"{_names(blind)} did not see what was written here", remedy)
    return NODES.ok("shared folder", "the nodes read what was written here, and this machine what they wrote")


def _python(reports: Sequence[NodeReport]) -> CheckResult:
    versions = sorted({report.python_version for report in reports})
    if versions == [platform.python_version()]:
        return NODES.ok("Python", f"{versions[0]}, as here")
    remedy = "It works as long as all have the packages; set slurm.python to choose one."
    return NODES.warning("Python", f"{', '.join(versions)}, and {platform.python_version()} here", remedy)


def _torch(reports: Sequence[NodeReport]) -> CheckResult:
    failed = [report for report in reports if report.torch_error]
    if failed:
        remedy = "Set slurm.setup (modules), slurm.python, or install it where the nodes see it: make setup"
        return NODES.problem("torch", f"not on {_names(failed)}: {failed[0].torch_error}", remedy)
    versions = sorted({report.torch_version for report in reports if report.torch_version})
    if len(versions) != 1:
        return NODES.problem("torch", f"versions differ: {', '.join(versions) or 'none told'}", "Set slurm.python.")
    slowest = max(report.torch_seconds or 0.0 for report in reports)
    return NODES.ok("torch", f"{versions[0]}, imported in {slowest:.0f} s")


def _devices(reports: Sequence[NodeReport], cluster: ClusterSpec) -> Iterator[CheckResult]:
    report = reports[0]
    if cluster.device.kind == "cpu":
        yield NODES.ok("devices", f"cores ({report.device}); collectives by {report.backend}")
        return
    if blind := _blind(reports, cluster):
        remedy = "Check slurm.gpu_request and slurm.srun_args, and that torch was built for these devices."
        yield NODES.problem("devices", f"torch sees none on {_names(blind)}, though one was asked for", remedy)
        return
    memory = report.device_memory_bytes / GIBIBYTE
    yield NODES.ok(
        "devices", f"{report.device}, {memory:.0f} GiB, driver {report.driver or 'unknown'}; {report.backend}"
    )
    stated = cluster.device.memory_bytes
    # A driver keeps some of the memory to itself, and makers count in powers of ten or of two.
    if abs(report.device_memory_bytes - stated) > 0.1 * stated:
        says = f"{memory:.0f} GiB, and {stated / GIBIBYTE:.0f} GiB by the file of {cluster.name}"
        yield NODES.warning("device memory", says, "Choose the cluster's right device, or correct its memory_bytes.")


def _blind(reports: Sequence[NodeReport], cluster: ClusterSpec) -> list[NodeReport]:
    """The reports of nodes on which torch sees no device, where a rank computes on one."""
    return [each for each in reports if cluster.device.kind != "cpu" and not each.num_devices]


def _link(reports: Sequence[NodeReport], cluster: ClusterSpec) -> Iterator[CheckResult]:
    failed = [report for report in reports if report.link_error]
    if failed:
        remedy = "Often the network interface: set NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME in slurm.environment."
        if _blind(reports, cluster):
            remedy = "It needs the devices that torch does not see: mend that first."
        yield NODES.problem("all-reduce", f"{failed[0].hostname}: {failed[0].link_error}", remedy)
        return
    first = reports[0]
    if first.link_bandwidth_bytes_per_second is None or first.link_latency_seconds is None:
        return
    rate, micros = first.link_bandwidth_bytes_per_second / GIGA, 1e6 * first.link_latency_seconds
    says = f"measured {rate:.3g} GB/s, {micros:.3g} microseconds with one device a node"
    link = cluster.link_between_nodes
    if link is None:
        yield NODES.ok("all-reduce", f"works; {says}. The file of {cluster.name} has no link between nodes")
        return
    stated = link.bandwidth_bytes_per_second * cluster.efficiency.link / GIGA
    says += f"; the file of {cluster.name} says {stated:.3g} GB/s a device when all communicate ({link.name})"
    if rate < LOW_SHARE * stated:
        remedy = f"Look for a wrong interface or a missing plugin; else `trisweep calibrate cluster={cluster.name}`."
        yield NODES.warning("all-reduce", says, remedy)
    else:
        yield NODES.ok("all-reduce", says)


def machine_findings(output_dir: Path, *, with_slurm: bool, with_job: bool) -> Iterator[CheckResult]:
    """Look at this machine, which is a login node where there is Slurm.

    Args:
        output_dir: where sweeps are written; it is made if it is not there.
        with_job: a job will find out whether the nodes see that folder.
    """
    yield MACHINE.ok("Python", f"{platform.python_version()} at {sys.executable}")
    yield _torch_here(with_slurm=with_slurm)
    if not with_slurm:
        machine = this_machine()
        has = count_of(machine.num_devices, "accelerator") if machine.num_devices else "no accelerator"
        memory = f"{machine.memory_bytes / GIBIBYTE:.0f} GiB"
        yield MACHINE.ok("devices", f"{has}, {count_of(machine.num_cores, 'core')}, {memory}")
    yield from folder_findings(output_dir, with_slurm=with_slurm, with_job=with_job)


def folder_findings(output_dir: Path, *, with_slurm: bool, with_job: bool) -> Iterator[CheckResult]:
    writable = _writable(output_dir)
    yield writable
    if writable.status == "ok":
        yield _space(output_dir)
        yield _private(output_dir)
        yield _locks(output_dir)
        if with_slurm:
            yield _file_system(output_dir, with_job=with_job)


def _torch_here(*, with_slurm: bool) -> CheckResult:
    """Check that torch can be imported, in a process of its own, because that may take long or crash."""
    code = "import torch; print(torch.__version__)"
    result = ask(sys.executable, "-c", code, seconds=TORCH_SECONDS)
    if result.exit_code is None:
        return MACHINE.warning("torch", f"not imported within {TORCH_SECONDS} s", "Look at the file system it is on.")
    if result.ok:
        return MACHINE.ok("torch", result.stdout.strip())
    said = (result.stderr.strip().splitlines() or ["no word of why"])[-1]
    if with_slurm:  # jobs may have a Python of their own
        remedy = "The job below says whether the nodes can. If not: make setup, or TORCH=site, or slurm.python."
        return MACHINE.warning("torch", f"cannot be imported here: {said}", remedy)
    return MACHINE.problem("torch", f"cannot be imported: {said}", "Install it with `make setup`, or use TORCH=site.")


def _writable(folder: Path) -> CheckResult:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
            file.write(b"x" * PROBE_BYTES)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        remedy = "Choose a folder that you may write with output_dir=PATH."
        return MACHINE.problem("output_dir", f"{folder} cannot be written ({error.strerror})", remedy)
    return MACHINE.ok("output_dir", f"{folder} can be written")


def _space(folder: Path) -> CheckResult:
    free = shutil.disk_usage(folder).free
    says = f"{free / GIBIBYTE:,.0f} GiB free (a quota may allow less)"
    if free < LITTLE_BYTES:
        return MACHINE.warning("space", says, "Checkpoints need more; choose another disk with output_dir=PATH.")
    return MACHINE.ok("space", says)


def _private(folder: Path) -> CheckResult:
    mode = folder.stat().st_mode & 0o777
    if mode & 0o022:
        says = f"others may write into {folder} (mode {mode:03o})"
        close = f"chmod go-w {shlex.quote(str(folder))}"
        return MACHINE.warning("privacy", says, f"Jobs run programs that lie there: {close}")
    return MACHINE.ok("privacy", f"only you may write (mode {mode:03o}); what sweeps write is private to you")


def _locks(folder: Path) -> CheckResult:
    """Check that the file system has locks, by which two commands keep out of each other's way."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as first, open(first.name, "rb") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            remedy = "Choose another with output_dir=PATH, or have it mounted with locks (Lustre: -o flock)."
            return MACHINE.problem("file locks", f"the file system knows none ({error.strerror})", remedy)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return MACHINE.ok("file locks", "work")
    return MACHINE.problem("file locks", "do not keep a second process out", "Choose another folder: output_dir=PATH.")


def _file_system(folder: Path, *, with_job: bool) -> CheckResult:
    kind = file_system_of(folder)
    if kind in SHARED_SYSTEMS:
        return MACHINE.ok("shared folder", f"on {kind}, which other machines can see too")
    says = f"on {kind or 'an unknown file system'}, which other machines may not see"
    if with_job:
        return MACHINE.skip("shared folder", f"{says}; the job below finds out")
    return MACHINE.warning("shared folder", says, "Choose one that login and compute nodes share: output_dir=PATH")


def file_system_of(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The kind of file system that holds the folder; empty where the system does not say."""
    try:
        lines = [line.split() for line in mounts.read_text(errors="replace").splitlines()]
    except OSError:
        return ""
    path = folder.resolve()
    # The mount point with the longest path that holds the folder; of two on the same path the later one covers it.
    holding = [(len(line[1]), index, line[2]) for index, line in enumerate(lines) if path.is_relative_to(line[1])]
    return max(holding)[2] if holding else ""
