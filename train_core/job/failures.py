"""Why a rank ended, told by its exception or its signal, and which of several ranks is the culprit. No torch."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from conf.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, TrainingError, TrisweepError
from train_core.process.machine import this_node
from train_core.process.stop import Stopped
from train_core.trial.folder import JobFolder
from train_core.trial.logs import last_lines, without_controls
from train_core.trial.measurement import Fault, Measurement, Outcome, RankFailure

# Matched by words and not by type: torch, NCCL, glibc and the kernel each say it in their own way, some in logs only.
OUT_OF_MEMORY = re.compile(
    r"\bOutOfMemoryError\b|\bMemoryError\b|out of memory|can't allocate memory|not enough memory|Cannot allocate memory"
    r"|std::bad_alloc",
    re.IGNORECASE,
)
PEER_LOST = re.compile(
    r"^Dist\w+Error\b|Connection (reset|closed|refused)|Broken pipe|Socket (closed|timeout)|gloo/"
    r"|(?<![\w/.-])NCCL|ProcessGroup|Timed out waiting|store->get|^RuntimeError: rank \d+ failed: ",
    re.IGNORECASE,
)
"""Errors of a collective whose other side went away or failed: a consequence, not a cause. What stands in the name of a
file is neither."""

HARDWARE = re.compile(
    r"uncorrectable|ECC error|unhandled (system|cuda|hip) error|no (CUDA|HIP)[- ]capable device"
    r"|(?<![\w/.-])(hardware|drivers?)\b(?!-)|InsufficientDriver"
    r"|(CUDA|HIP) error: (unknown error|initialization error|.*(busy|unavailable|not ready|launch fail))"
    r"|fallen off the bus|\bXid\b|\bNVML\b|Remote I/O error|Stale file handle",
    re.IGNORECASE,
)
"""The messages of a broken or busy device, its driver, or the network; not the names of files."""

# torch: "Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 63.98 GiB of which 1.25 GiB is free", and before
# version 2.1 "Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total capacity; ...; 10.12 MiB free; ...)".
WANTED = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|[KMGT]iB)")
FREE = re.compile(r"([\d.]+) (bytes|[KMGT]iB) (?:is )?free\b")
LIMIT = re.compile(r"exceeded memory limit \((\d+) > (\d+)\)")
"""Slurm's words, both numbers in bytes."""

BYTES = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
OUTSIDE_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
DATA_CODE = os.path.join("train_core", "data", "")  # noqa: PTH118 (a part of a path, with its last separator)

CULPRIT_GRACE_SECONDS = 2.0
"""The seconds to wait for the culprit's end when a rank that merely lost its peer is seen first."""

VMSTAT = Path("/proc/vmstat")

FULL_DISK = re.compile("No space left on device|Disk quota exceeded")
MAKE_ROOM = "Make room there (space, inodes, a quota), and give the same command again"


@contextmanager
def ended_by_failure(
    trial: JobFolder, rank: int, tell: Callable[[RankFailure], object] = lambda failure: None
) -> Iterator[None]:
    """A failure in the block is told, left in the trial folder, printed, and ends the process at once.

    A normal exit may wait for collectives, or for a thread that writes a checkpoint, that will never end. `Stopped` is
    no failure.

    Args:
        tell: passes it on where the folder may take no word, as on a full disk.
    """
    try:
        yield
    except Stopped:
        raise
    except BaseException as error:
        with ExitStack() as ending:  # told, then written, printed and ended, even where one of these fails
            ending.callback(os._exit, _exit_code_of(error))
            ending.callback(_print, error)
            traceback.clear_frames(error.__traceback__)  # frees what filled the memory, so that this can be told
            failure = failure_of(rank, error)
            ending.callback(trial.write_failure, failure)
            tell(failure)


def _exit_code_of(error: BaseException) -> int:
    if isinstance(error, TrisweepError):
        return EXIT_USAGE
    return EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else EXIT_FAILED


def _print(error: BaseException) -> None:
    traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()


def failure_of(rank: int, error: BaseException) -> RankFailure:
    """A rank's account of the exception that ends it."""
    # A cause is one line of a table. Errors of our own are written for people, and need no type before them.
    message = " ".join(without_controls(str(error)).split("\n", 1)[0].split())
    cause = message if isinstance(error, TrisweepError) else f"{type(error).__name__}: {message}"
    fault = fault_of(error)
    return RankFailure(
        rank=rank,
        outcome=Outcome.OUT_OF_MEMORY if fault is Fault.MEMORY else Outcome.FAILED,
        cause=cause,
        traceback=without_controls("".join(traceback.format_exception(error))),
        time=time.time(),
        # Where all ranks end together, such as by a loss that is not finite, the error knows whose fault it is.
        blamed=getattr(error, "blamed", rank),
        fault=fault,
        # Such an error is raised by all ranks together, also by those on other nodes than the one that is blamed.
        node=error.node if isinstance(error, TrainingError) else this_node(),
        over_capacity_bytes=over_capacity_bytes(str(error)) if fault is Fault.MEMORY else None,
    )


def fault_of(error: BaseException) -> Fault:
    if isinstance(error, KeyboardInterrupt):
        return Fault.KILLED
    if isinstance(error, TrainingError) and error.suspects_device:
        return Fault.HARDWARE
    if FULL_DISK.search(str(error)):
        return Fault.DISK
    if isinstance(error, TrisweepError):  # whatever words the value has that it names, such as a path
        return Fault.INPUT
    text = f"{type(error).__name__}: {error}"
    if OUT_OF_MEMORY.search(text):
        return Fault.MEMORY
    if HARDWARE.search(text) or PEER_LOST.search(text):
        return Fault.HARDWARE
    raised_in = traceback.extract_tb(error.__traceback__)
    # An error where data are read is of the data; whatever else went wrong is this package's to explain.
    return Fault.INPUT if raised_in and DATA_CODE in raised_in[-1].filename else Fault.CRASH


def of_full_disk(failure: RankFailure) -> RankFailure:
    """A failure without a cause of its own; that of a full disk where its last words tell of one."""
    line = next((line for line in reversed(failure.traceback.splitlines()) if FULL_DISK.search(line)), None)
    told = {"fault": Fault.DISK, "cause": f"{failure.cause}; it said: {' '.join((line or '').split())}"}
    return failure.model_copy(update=told) if line else failure


def fault_of_signal(number: int) -> Fault:
    return Fault.KILLED if number in OUTSIDE_SIGNALS else Fault.CRASH


def over_capacity_bytes(text: str) -> float | None:
    """The bytes that a failed request exceeded the free memory by; None where the words do not say.

    It is a lower bound of what the step lacks, because what would have come after the request is not known.
    """
    if limit := LIMIT.search(text):
        return float(limit.group(1)) - float(limit.group(2))
    wanted, free = WANTED.search(text), FREE.search(text)
    if wanted is None or free is None:
        return None
    # Memory in small pieces may be free in sum, and too little in one piece.
    return max(0.0, _bytes(wanted) - _bytes(free))


def _bytes(found: re.Match[str]) -> float:
    return float(found.group(1)) * BYTES[found.group(2)]


def silent_failure(rank: int, exit_code: int, oom_kills: int, log: Path) -> RankFailure:
    """The failure of a rank that ended without a word; `exit_code` is negative for a signal.

    Args:
        oom_kills: processes that the kernel killed for memory while the trial ran.
        log: the rank's output, whose end stands in for a traceback.
    """
    said = last_lines(log)
    # Nothing in Python could run after a signal or a crash in native code, so the log has the only words there are.
    if exit_code < 0:
        cause = f"rank {rank} was killed by {signal.Signals(-exit_code).name}"
    elif exit_code == 0:
        cause = f"rank {rank} exited with code 0 before the training ended"
    else:
        cause = f"rank {rank} exited with code {exit_code} and left no traceback"
    fault = fault_of_signal(-exit_code) if exit_code < 0 else Fault.CRASH
    # SIGKILL alone may have come from anybody; with the kernel's counter it was most likely the kernel.
    if exit_code == -signal.SIGKILL and oom_kills > 0:
        fault, cause = Fault.MEMORY, f"{cause}; the kernel ended a process for lack of memory"
    elif OUT_OF_MEMORY.search(said):
        fault = Fault.MEMORY
    failure = RankFailure(
        rank=rank,
        outcome=Outcome.OUT_OF_MEMORY if fault is Fault.MEMORY else Outcome.FAILED,
        cause=cause,
        traceback=said,
        time=time.time(),
        blamed=rank,
        fault=fault,
        node=this_node(),
        over_capacity_bytes=over_capacity_bytes(said) if fault is Fault.MEMORY else None,
    )
    return failure if fault is Fault.MEMORY else of_full_disk(failure)


def lost_a_peer(failure: RankFailure) -> bool:
    """True if the rank failed because another one had gone."""
    # Of what is wrong with the input, a path may have such words.
    return failure.fault is not Fault.INPUT and PEER_LOST.search(failure.cause) is not None


def first_cause(failures: Iterable[RankFailure]) -> RankFailure | None:
    """The culprit: the earliest failure that is not the loss of a peer, else the earliest; None without failures."""
    # By time, because the first to fail is the one from which the others' failures follow.
    ordered = sorted(failures, key=lambda failure: failure.time)
    culprits = [failure for failure in ordered if not lost_a_peer(failure)]
    return next(iter([*culprits, *ordered]), None)


def failed_measurement(fingerprint: str, failure: RankFailure, started: float) -> Measurement:
    """The measurement of a trial that one rank's failure ended."""
    cause, blamed, nodes = failure.cause, failure.blamed, (failure.node,) if failure.node else ()
    if lost_a_peer(failure):  # it is a victim, and whoever left it has said nothing
        cause = f"rank {failure.rank} ended as if it had lost another rank, and no other rank says more: {cause}"
        blamed, nodes = None, ()
    if failure.fault is Fault.DISK and "Make room" not in cause:
        cause = f"{cause}. {MAKE_ROOM}"
    unmeasured = without_numbers(fingerprint, failure.outcome, cause, started, failure.traceback)
    told = {
        "failing_rank": blamed,
        "fault": failure.fault,
        "nodes": nodes,
        "over_capacity_bytes": failure.over_capacity_bytes,
    }
    return unmeasured.model_copy(update=told)


def without_numbers(
    fingerprint: str, outcome: Outcome, cause: str, started: float, said: str | None = None
) -> Measurement:
    """The measurement of a trial that ends now and measured nothing; `said` is what it left as its last words."""
    return Measurement(
        fingerprint=fingerprint,
        outcome=outcome,
        cause=cause,
        traceback=said or None,
        started=started,
        ended=time.time(),
    )


def oom_kill_count() -> int:
    """The processes that the kernel has killed for lack of memory since it started; 0 where it does not say."""
    if not VMSTAT.exists():
        return 0
    counters = dict(line.split() for line in VMSTAT.read_text().splitlines())
    return int(counters.get("oom_kill", 0))
