"""The fault that ended a rank, told by its exception or its signal, and the memory it lacked. No torch."""

from __future__ import annotations

import os
import re
import signal
import traceback

from conf.errors import TrainingError, TrisweepError
from train_core.measurement import Fault

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


def fault_of(error: BaseException) -> Fault:
    if isinstance(error, KeyboardInterrupt):
        return Fault.KILLED
    if isinstance(error, TrainingError) and error.suspects_device:
        return Fault.HARDWARE
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
