"""`python -m benchmarks.chaos.controller FOLDER`: the controller of a sweep, to be killed at any instant."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.chaos.cluster import Cluster
from benchmarks.chaos.job_on_node import put_clock_ahead
from benchmarks.chaos.workbench import ChaosWorkbench, refusals_told
from launcher.control.conductor import Conductor
from launcher.control.loop import go_on
from launcher.control.workplace import ProgressDisplay
from launcher.folder_lock import lock_folder
from launcher.slurm.workplace import SlurmQueue
from launcher.sweep import slurm_rules
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep

POLL_SECONDS, BUSY_SECONDS = 0.5, 0.3
SLOTS = 4
"""Trials that are queued or running at once, so that a sweep takes many steps."""


class Silent(ProgressDisplay):
    """A progress that shows nothing."""

    def show(self, states: Sequence[TrialReading]) -> None:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clock", type=float, default=0.0, metavar="SECONDS", help="how much the clock is ahead")
    parser.add_argument("--poll", type=float, default=POLL_SECONDS, metavar="SECONDS", help="between two steps")
    given = parser.parse_args()
    bench = ChaosWorkbench.of(given.folder, Cluster(given.folder))
    put_clock_ahead(given.clock)
    print("begun", flush=True)
    while not _carry_on(bench, given.poll):
        time.sleep(BUSY_SECONDS)


def _carry_on(bench: ChaosWorkbench, poll_seconds: float) -> bool:
    """Step after step to the end; False where another controller has the folder."""
    folder = bench.sweep.folder
    with refusals_told(), lock_folder(folder):
        rules = replace(slurm_rules(bench.slurm), max_concurrent_trials=SLOTS)
        conductor = Conductor(Sweep.stored_in(folder), SlurmQueue(bench.slurm, bench.job), rules)
        print(go_on(conductor, Silent(), poll_seconds).finished, flush=True)
        return True
    return False


if __name__ == "__main__":
    main()
