"""A command of trisweep in a process of its own, and what it took: seconds, memory, and calls of the file system.

    python -m benchmarks.measured_command FILE WORD...

runs `trisweep WORD...` and writes into FILE what it took. The counts say what a slow disk would make of it, which the
seconds on a machine that others share do not.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from conf.units import MEBIBYTE
from train_core.process.git_sha import ROOT

COUNTED = ("fsync", "stat", "lstat")
"""Functions of `os` that, unlike what opens and lists, tell audit hooks nothing."""


class Taken(NamedTuple):
    """What a command took.

    Attributes:
        core_seconds: what cores worked for it, its tools included.
        mebibytes: the most memory that its own process held.
        opened, statted: files and folders, every time that they were.
        printed: bytes on standard output.
    """

    what: str
    seconds: float
    core_seconds: float
    mebibytes: float
    fsyncs: int
    opened: int
    statted: int
    printed: int


def measure(what: str, words: Sequence[str], environment: Mapping[str, str]) -> Taken:
    """Run `trisweep WORDS`, which has to end well."""
    with tempfile.TemporaryDirectory() as folder:
        told, output = Path(folder, "told.json"), Path(folder, "output")
        command = [sys.executable, "-m", "benchmarks.measured_command", str(told), *words]
        before, began = os.times(), time.perf_counter()
        with output.open("wb") as file:
            subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=file)
        seconds, after = time.perf_counter() - began, os.times()
        core = sum(after[2:4]) - sum(before[2:4])
        return Taken(what, seconds, core, **json.loads(told.read_text()), printed=output.stat().st_size)


def _run_counted(told: Path) -> None:
    """Run the command that is in `sys.argv`, and write down its counts however it ends."""
    counts = Counter[str]()
    for name in COUNTED:
        setattr(os, name, _counted(getattr(os, name), name, counts))
    sys.addaudithook(
        lambda event, _: counts.update((event,)) if event in ("open", "os.listdir", "os.scandir") else None
    )
    try:
        runpy.run_path(str(Path(sys.executable).with_name("trisweep")), run_name="__main__")
    finally:
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert peak is not None
        taken = {
            "mebibytes": int(peak[1]) * 1024 / MEBIBYTE,
            "fsyncs": counts["fsync"],
            "opened": counts["open"] + counts["os.listdir"] + counts["os.scandir"],
            "statted": counts["stat"] + counts["lstat"],
        }
        told.write_text(json.dumps(taken))


def _counted(function: Callable[..., Any], name: str, counts: Counter[str]) -> Callable[..., Any]:
    def call(*args: Any, **more: Any) -> Any:
        counts[name] += 1
        return function(*args, **more)

    return call


if __name__ == "__main__":
    file, *words = sys.argv[1:]
    sys.argv = ["trisweep", *words]
    _run_counted(Path(file))
