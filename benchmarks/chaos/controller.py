"""`python -m benchmarks.chaos.controller FOLDER`: a process that carries a sweep on, to be killed at any instant."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks.chaos.cluster import Cluster
from benchmarks.chaos.workbench import Workbench

POLL_SECONDS = 0.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clock", type=float, default=0.0, metavar="SECONDS", help="how much the clock is ahead")
    given = parser.parse_args()
    bench = Workbench.of(given.folder, Cluster(given.folder))
    if given.clock:
        real = time.time
        time.time = lambda: real() + given.clock
    print("begun", flush=True)
    while True:
        bench.advance()
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main()
