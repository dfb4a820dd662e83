"""Scenarios: full and read-only disks, damaged files."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.chaos.cluster import command
from benchmarks.chaos.job_on_node import take_away_links
from benchmarks.chaos.scenario import scenario
from benchmarks.chaos.workbench import ChaosWorkbench, refusals_told
from train_core.trial.measurement import Outcome

TORN = '{"fingerprint": "abc", "outcome": "COMPL'


@scenario("the disk of the sweep is full, then enlarged", repetitions=2)
def disk_full(bench: ChaosWorkbench) -> None:
    with _disk(bench, "1500k"):
        bench.order(seconds=1)
        bench.harm(_expect_refusal, bench)
        command("mount", "-o", "remount,size=200m", str(bench.sweep.folder.path))
        bench.finish()
        bench.take_stock()


@scenario("the disk fills up while jobs run, and is emptied", repetitions=1)
def disk_full_while_jobs_run(bench: ChaosWorkbench) -> None:
    with _disk(bench, "20m"):
        bench.train(seconds=4)
        filler = bench.sweep.folder.path / "filler"
        bench.harm(_fill, filler)
        bench.advance()
        bench.until_complete(bench.names[0])
        filler.unlink()
        bench.finish()
        bench.take_stock()


@scenario("the folder is read-only, then not", repetitions=1)
def folder_read_only(bench: ChaosWorkbench) -> None:
    with _disk(bench, "200m"):
        bench.order(seconds=2)
        bench.start(extra_sbatch={"hold": True})  # a disk on which a job writes cannot be made read-only
        command("mount", "-o", "remount,ro", str(bench.sweep.folder.path))
        bench.harm(_expect_refusal, bench)
        command("mount", "-o", "remount,rw", str(bench.sweep.folder.path))
        command("scontrol", "release", ",".join({bench.job_of(name).split("_")[0] for name in bench.names}))
        bench.finish()
        bench.take_stock()


@scenario("measurement.json is torn, empty, foreign, or a folder; submission.json and attempts too", repetitions=2)
def files_torn(bench: ChaosWorkbench) -> None:
    bench.begin(seconds=1)
    bench.settle()
    torn, empty, of_another, folder = (bench.sweep.folder.trial(name) for name in bench.names)
    bench.harm(torn.measurement.write_text, TORN)
    bench.harm(empty.measurement.write_bytes, b"")
    foreign = of_another.measurement.read_text().replace('"fingerprint": "', '"fingerprint": "f')
    bench.harm(of_another.measurement.write_text, foreign)
    folder.measurement.unlink()
    bench.harm(folder.measurement.mkdir)
    bench.harm(torn.submission.write_bytes, b"\xff\x00")
    bench.harm(folder.attempts.write_bytes, b'\xff{"number": 1')
    bench.forget_completions()  # these results are gone, and are to be measured again
    bench.finish()


@scenario("the file system has no hard links; one job is cancelled, one is killed", repetitions=1)
def no_hard_links(bench: ChaosWorkbench) -> None:
    cancelled, killed, *_ = bench.names
    bench.num_faults += 1
    link = os.link
    take_away_links()
    try:
        bench.begin({killed: {"end": "kills itself"}}, seconds=4, without_links=True)
        bench.until_running(cancelled)
        bench.harm(command, "scancel", bench.job_of(cancelled))
        bench.settle()
        assert bench.measurement_of(cancelled).outcome is Outcome.CANCELLED
        bench.retry(without_links=True)
    finally:
        os.link = link


@scenario("the file system has no locks, which is refused; then it has", repetitions=1)
def no_locks(bench: ChaosWorkbench) -> None:
    bench.order(seconds=1)
    lock = fcntl.flock
    fcntl.flock = _without_locks
    try:
        bench.harm(_expect_refusal, bench)
    finally:
        fcntl.flock = lock
    assert not bench.executions(), "jobs ran, though two commands could have started them"
    bench.finish()


@scenario("the file system keeps times in whole seconds; running jobs are requeued", repetitions=1)
def coarse_times(bench: ChaosWorkbench) -> None:
    with _disk_of_whole_seconds(bench):
        bench.train(seconds=4)
        for name in bench.names:
            bench.harm(command, "scontrol", "requeue", bench.job_of(name))
        bench.finish()
        bench.take_stock()


def _without_locks(descriptor: object, operation: int) -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def _expect_refusal(bench: ChaosWorkbench) -> None:
    """The folder takes nothing now, and that is one message."""
    with refusals_told():
        bench.start()


def _fill(path: os.PathLike[str]) -> None:
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 65536)
        except OSError:
            return


@contextmanager
def _disk_of_whole_seconds(bench: ChaosWorkbench) -> Iterator[None]:
    """A disk whose inodes of 128 bytes have no room for parts of seconds."""
    folder, image = bench.sweep.folder.path, bench.sweep.folder.path.with_suffix(".img")
    command("truncate", "--size=64M", str(image))
    command("mkfs.ext4", "-q", "-I", "128", str(image))
    command("mount", "-o", "loop", str(image), str(folder))
    try:
        yield
    finally:
        command("umount", "--lazy", str(folder))


@contextmanager
def _disk(bench: ChaosWorkbench, size: str) -> Iterator[None]:
    """A small disk of its own for the sweep's folder."""
    folder = str(bench.sweep.folder.path)
    command("mount", "-t", "tmpfs", "-o", f"size={size}", "trisweep-chaos", folder)
    try:
        yield
    finally:
        command("umount", "--lazy", folder)
