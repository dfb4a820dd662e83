"""`make chaos`, or `python -m benchmarks.chaos [SCENARIO ...]`: harm sweeps on the Slurm test cluster, and count."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.chaos.aftermath import Aftermath
from benchmarks.chaos.catalogue import CATALOGUE
from benchmarks.chaos.cluster import Cluster, command, test_cluster
from benchmarks.chaos.page import COLUMNS, NAMES_OF_OWN, PAGE, ChaosRun, add, counts
from benchmarks.chaos.repetition import run_apart
from benchmarks.chaos.scenario import Scenario
from conf.errors import EXIT_FAILED

SIDE_BY_SIDE = 3
"""Scenarios that run at once, apart from those that disturb others. The machine may have few cores."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the scenarios, print what they found, and write the page if none was left out; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    names = parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(CATALOGUE))
    parser.add_argument("--once", action="store_true", help="one repetition of each")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="of the order, and of instants")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.scenarios if name not in CATALOGUE]:
        parser.error(f"argument {names.metavar}: no scenario {unknown[0]}")
    print(f"seed {given.seed}", flush=True)
    started, commit, loads = time.monotonic(), _commit(), list[float]()
    chosen = [CATALOGUE[name] for name in given.scenarios or CATALOGUE]
    with test_cluster() as cluster:
        found = list(_run_all(chosen, cluster, given.seed, loads, once=given.once))
        slurm = command("sbatch", "--version").strip()
    minutes = (time.monotonic() - started) / 60
    print(f"{minutes:.0f} minutes, seed {given.seed}: {_words(found)}")
    if not (given.scenarios or given.once):
        machine = f"{os.cpu_count()} cores with a load of {min(loads):.0f} to {max(loads):.0f}"
        add(
            ChaosRun(
                seed=given.seed,
                commit=commit,
                date=str(datetime.date.today()),
                slurm=slurm,
                machine=machine,
                minutes=round(minutes, 1),
                found=tuple(found),
            )
        )
        print(f"wrote {PAGE}")
    return 0 if all(each.is_unharmed for each in found) else EXIT_FAILED


def _commit() -> str:
    """In twelve digits, `-dirty` where anything has changed but what runs write."""
    changed = command("git", "status", "--porcelain", "--", ":/", *(f":!/{name}" for name in NAMES_OF_OWN))
    return command("git", "rev-parse", "--short=12", "HEAD").strip() + ("-dirty" if changed.strip() else "")


def _run_all(
    chosen: Sequence[Scenario], cluster: Cluster, seed: int, loads: list[float], *, once: bool
) -> Iterator[Aftermath]:
    """Those that disturb nobody side by side, then the others one by one, in the order that the seed gives.

    The folders of those that did not survive stay, for whoever wants to know why.
    """
    parent = Path(tempfile.mkdtemp(prefix="trisweep-chaos-"))
    num_all = sum(1 if once else scenario.repetitions for scenario in chosen)
    num_done = 0
    for alone in (False, True):
        group = [scenario for scenario in chosen if scenario.alone is alone]
        each_time = [(scenario, number) for scenario in group for number in range(1 if once else scenario.repetitions)]
        random.Random(seed).shuffle(each_time)
        with ThreadPoolExecutor(1 if alone else SIDE_BY_SIDE) as threads:
            folders = [parent / f"{scenario.name}-{number}" for scenario, number in each_time]
            pending = [
                threads.submit(run_apart, scenario, folder, cluster, seed)
                for (scenario, _), folder in zip(each_time, folders, strict=True)
            ]
            for folder, future in zip(folders, pending, strict=True):
                found, num_done = future.result(), num_done + 1
                loads.append(os.getloadavg()[0])
                print(f"{num_done}/{num_all} {found.scenario}: {_words([found])} ({found.seconds:.0f} s)", flush=True)
                if found.note:
                    print(f"    {found.note}", flush=True)
                if found.is_unharmed:
                    for each in (folder, *folder.parent.glob(f"{folder.name}[-.]*")):  # what lies beside it is its own
                        shutil.rmtree(each, ignore_errors=True) if each.is_dir() else each.unlink(missing_ok=True)
                else:
                    print(f"    {folder}", flush=True)
                yield found
    with contextlib.suppress(OSError):  # it is not empty
        parent.rmdir()


def _words(found: Sequence[Aftermath]) -> str:
    _, *numbers = counts(found)
    return ", ".join(f"{name} {count}" for name, count in zip(COLUMNS[3:], numbers, strict=True))


if __name__ == "__main__":
    sys.exit(main())
