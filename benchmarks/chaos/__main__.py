"""`make chaos`, or `python -m benchmarks.chaos [SCENARIO ...]`: harm sweeps on the Slurm test cluster, and count."""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import benchmarks.chaos.harm_to_allocations
import benchmarks.chaos.harm_to_files
import benchmarks.chaos.harm_to_jobs
import benchmarks.chaos.harm_to_slurm
import benchmarks.chaos.harm_to_us  # noqa: F401  (scenarios add themselves to the catalogue)
from benchmarks.chaos.cluster import Cluster, command, test_cluster
from benchmarks.chaos.page import PAGE, counts, page
from benchmarks.chaos.scenario import CATALOGUE, Found, Scenario
from benchmarks.chaos.workbench import Workbench
from conf.errors import EXIT_FAILED

LONGEST_SECONDS = 1200
SIDE_BY_SIDE = 3
"""Scenarios that run at once, apart from those that disturb others. The machine may have few cores."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the scenarios, print what they found, and write the page if none was left out; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    names = parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(CATALOGUE.scenarios))
    parser.add_argument("--once", action="store_true", help="one repetition of each")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.scenarios if name not in CATALOGUE.scenarios]:
        parser.error(f"argument {names.metavar}: no scenario {unknown[0]}")
    chosen = [CATALOGUE.scenarios[name] for name in given.scenarios or CATALOGUE.scenarios]
    if given.inside:
        print(run(chosen[0], given.inside, Cluster(Path(os.environ["SLURM_TEST_DIR"]))).model_dump_json())
        return 0
    started = time.monotonic()
    with test_cluster():
        done = list(_run_all(chosen, once=given.once))
        slurm = command("sbatch", "--version").strip()
    print(f"{time.monotonic() - started:.0f} s")
    if not (given.scenarios or given.once):
        PAGE.write_text(page(done, slurm, datetime.date.today().isoformat()))
        print(f"wrote {PAGE}")
    return 0 if all(each.survived for _, found in done for each in found) else EXIT_FAILED


def run(scenario: Scenario, folder: Path, cluster: Cluster) -> Found:
    """One repetition, in this process."""
    started = time.monotonic()
    bench = Workbench.new(folder, cluster, scenario.num_trials)
    problem = ""
    try:
        scenario.run(bench)
    except (AssertionError, TimeoutError, subprocess.SubprocessError) as error:
        problem = f"{type(error).__name__}: {error}"
    found = bench.found(scenario, time.monotonic() - started)
    if problem:  # what was asserted on the way counts as an outcome that is wrong
        note = "; ".join(filter(None, (problem, found.note)))
        found = found.model_copy(update={"wrong": found.wrong + 1, "note": note})
    return found


def _run_all(chosen: Sequence[Scenario], *, once: bool) -> Iterator[tuple[Scenario, list[Found]]]:
    """Those that disturb nobody side by side, then the others one by one."""
    with tempfile.TemporaryDirectory(prefix="trisweep-chaos-") as folder:
        for alone in (False, True):
            group = [scenario for scenario in chosen if scenario.alone is alone]
            with ThreadPoolExecutor(1 if alone else SIDE_BY_SIDE) as threads:
                pending = {
                    scenario.name: [
                        threads.submit(_in_a_process, scenario, Path(folder, f"{scenario.name}-{number}"))
                        for number in range(1 if once else scenario.repetitions)
                    ]
                    for scenario in group
                }
                for scenario in group:
                    found = [each.result() for each in pending[scenario.name]]
                    _print(scenario, found)
                    yield scenario, found


def _in_a_process(scenario: Scenario, folder: Path) -> Found:
    """One repetition in a process of its own, because scenarios change what belongs to a whole process, as PATH."""
    words = [sys.executable, "-m", "benchmarks.chaos", scenario.name, "--inside", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False)
    if done.returncode == 0:
        return Found.model_validate_json(done.stdout.splitlines()[-1])
    last = (done.stderr.strip().splitlines() or ["no word"])[-1]
    print(done.stderr, file=sys.stderr, flush=True)
    return Found(
        scenario=scenario.name,
        num_trials=scenario.num_trials,
        num_faults=0,
        lost=0,
        twice=0,
        wrong=1,
        seconds=0,
        note=f"the scenario itself failed: {last}",
    )


def _print(scenario: Scenario, found: Sequence[Found]) -> None:
    names = ("repetitions", "faults", "trials", "lost", "twice", "wrong")
    said = ", ".join(f"{count} {name}" for name, count in zip(names, counts(found), strict=True))
    seconds = max(each.seconds for each in found)
    print(f"{scenario.name}: {said} ({seconds:.0f} s)", flush=True)
    for each in found:
        if each.note:
            print(f"    {each.note}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
