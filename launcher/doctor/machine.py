"""This machine: Python, torch, and the folder that sweeps are written to."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from conf.units import GIBIBYTE, count_of
from launcher.doctor.node_report import CheckResult, Findings
from launcher.machine import this_machine
from launcher.tools import ask

TORCH_SECONDS = 60
"""Importing torch from a busy network file system can take most of a minute."""

LITTLE_BYTES = 10 * GIBIBYTE
PROBE_BYTES = 2**20
SHARED_SYSTEMS = frozenset({"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "cifs", "panfs", "wekafs"})
"""File systems that several machines see, by their names in /proc/mounts."""

MACHINE = Findings("this machine")


def machine_findings(output_dir: Path, *, with_slurm: bool, with_job: bool) -> Iterator[CheckResult]:
    """Look at this machine, which is a login node where there is Slurm.

    Args:
        output_dir: where sweeps are written; it is made if it is not there.
        with_job: a job will find out whether the nodes see that folder.
    """
    yield MACHINE.ok("Python", f"{platform.python_version()} at {sys.executable}")
    yield _torch(with_slurm=with_slurm)
    if not with_slurm:
        yield _devices()
    yield from folder_findings(output_dir, with_slurm=with_slurm, with_job=with_job)


def folder_findings(output_dir: Path, *, with_slurm: bool, with_job: bool) -> Iterator[CheckResult]:
    """Look at the folder that sweeps are written to."""
    writable = _writable(output_dir)
    yield writable
    if writable.status == "ok":
        yield _space(output_dir)
        yield _private(output_dir)
        yield _locks(output_dir)
        if with_slurm:
            yield _file_system(output_dir, with_job=with_job)


def _torch(*, with_slurm: bool) -> CheckResult:
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


def _devices() -> CheckResult:
    machine = this_machine()
    count = machine.num_devices
    has = count_of(count, "accelerator") if count else "no accelerator"
    return MACHINE.ok(
        "devices", f"{has}, {count_of(machine.num_cores, 'core')}, {machine.memory_bytes / GIBIBYTE:.0f} GiB"
    )


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
        return MACHINE.warning("privacy", says, f"Jobs run programs that lie there: chmod go-w {folder}")
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
