"""`make chaos`, or `python -m benchmarks.chaos [SCENARIO ...]`: harm sweeps on the Slurm test cluster, and count."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import benchmarks.chaos.harm_to_allocations
import benchmarks.chaos.harm_to_controllers
import benchmarks.chaos.harm_to_files
import benchmarks.chaos.harm_to_jobs
import benchmarks.chaos.harm_to_slurm
import benchmarks.chaos.harm_to_us  # noqa: F401  (scenarios add themselves to the catalogue)
from benchmarks.chaos.cluster import Cluster, command, test_cluster
from benchmarks.chaos.scenario import CATALOGUE, Scenario
from benchmarks.chaos.workbench import Aftermath, ChaosWorkbench
from benchmarks.marked_tables import table_lines
from conf.errors import EXIT_FAILED
from train_core.process.git_sha import git_sha

LONGEST_SECONDS = 1200
SIDE_BY_SIDE = 3
"""Scenarios that run at once, apart from those that disturb others. The machine may have few cores."""

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
HEADING = """\
<!-- Written by `make chaos`; do not edit. -->
# Reliability

What goes wrong on clusters, done to real sweeps on a real Slurm: the test cluster of
[slurm.md](slurm.md#a-slurm-cluster-on-your-own-machine), four emulated nodes on one machine. The training alone is
made up: it sleeps, and counts its executions; a job's start, its claim on the folder, its attempts and how its end is
written are the real ones. After each fault the sweep is carried on by its own command until nothing more is to come.

"Lost" are trials that have no end although nothing more will be done, "run twice" those that ran to completion more
than once, "wrong" those whose outcome, or row in the report, is not what was done to them; a traceback counts as one
more. "Broken off" are repetitions in which the harm itself could not be done, which say nothing of the sweep. The harms
come in an order that a seed shuffles, each on a cluster whose daemons run and whose nodes are all up. `make chaos`
writes this page anew, with a new seed; `make chaos OPTIONS="--seed N"` repeats one.

Not done here: network file systems, cgroups, real GPUs, power failures of a whole machine.
"""
COLUMNS = ("harm", "repetitions", "faults", "trials", "lost", "run twice", "wrong", "broken off")
NUMBERS = ("num_faults", "num_trials", "lost", "twice", "wrong", "broken_off")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the scenarios, print what they found, and write the page if none was left out; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    names = parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(CATALOGUE))
    parser.add_argument("--once", action="store_true", help="one repetition of each")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="of the order, and of instants")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.scenarios if name not in CATALOGUE]:
        parser.error(f"argument {names.metavar}: no scenario {unknown[0]}")
    chosen = [CATALOGUE[name] for name in given.scenarios or CATALOGUE]
    if given.inside:
        print(run(chosen[0], given.inside, Cluster(Path(os.environ["SLURM_TEST_DIR"])), given.seed).model_dump_json())
        return 0
    started = time.monotonic()
    print(f"seed {given.seed}", flush=True)
    with test_cluster() as cluster:
        done = list(_run_all(chosen, cluster, given.seed, once=given.once))
        slurm = command("sbatch", "--version").strip()
    seconds = time.monotonic() - started
    print(f"{seconds:.0f} s, seed {given.seed}")
    if not (given.scenarios or given.once):
        when = f"Run on {datetime.date.today()} at commit {git_sha()[:12]} with {slurm}"
        PAGE.write_text(page(done, f"{when} and seed {given.seed}, in {seconds / 60:.0f} minutes."))
        print(f"wrote {PAGE}")
    return 0 if all(each.is_unharmed for _, found in done for each in found) else EXIT_FAILED


def run(scenario: Scenario, folder: Path, cluster: Cluster, seed: int = 0) -> Aftermath:
    started = time.monotonic()
    make = ChaosWorkbench.of_mixed_jobs if scenario.is_mixed else ChaosWorkbench.new
    bench = make(folder, cluster, scenario.num_trials, f"{seed} {folder.name}")
    problem = ""
    try:
        scenario.run(bench)
    except (TimeoutError, subprocess.SubprocessError) as error:
        return _unfinished_aftermath(scenario, f"{type(error).__name__}: {error}", time.monotonic() - started)
    except AssertionError as error:
        problem = f"{type(error).__name__}: {error}"
    found = bench.aftermath(scenario.name, time.monotonic() - started)
    if problem:  # what was asserted on the way counts as an outcome that is wrong
        note = "; ".join(filter(None, (problem, found.note)))
        found = found.model_copy(update={"wrong": found.wrong + 1, "note": note})
    return found


def _unfinished_aftermath(scenario: Scenario, why: str, seconds: float) -> Aftermath:
    return Aftermath(
        scenario=scenario.name, num_trials=scenario.num_trials, broken_off=1, seconds=seconds, note=f"broken off: {why}"
    )


def _run_all(
    chosen: Sequence[Scenario], cluster: Cluster, seed: int, *, once: bool
) -> Iterator[tuple[Scenario, list[Aftermath]]]:
    """Those that disturb nobody side by side, then the others one by one, in the order that the seed gives.

    The folders of those that did not survive stay, for whoever wants to know why.
    """
    found: dict[str, list[Aftermath]] = {scenario.name: [] for scenario in chosen}
    parent = Path(tempfile.mkdtemp(prefix="trisweep-chaos-"))
    for alone in (False, True):
        group = [scenario for scenario in chosen if scenario.alone is alone]
        each_time = [(scenario, number) for scenario in group for number in range(1 if once else scenario.repetitions)]
        random.Random(seed).shuffle(each_time)
        with ThreadPoolExecutor(1 if alone else SIDE_BY_SIDE) as threads:
            folders = [parent / f"{scenario.name}-{number}" for scenario, number in each_time]
            pending = [
                threads.submit(_in_a_process, scenario, folder, cluster, seed)
                for (scenario, _), folder in zip(each_time, folders, strict=True)
            ]
            for (scenario, _), folder, future in zip(each_time, folders, pending, strict=True):
                found[scenario.name].append(future.result())
                _print(found[scenario.name][-1], folder)
                if found[scenario.name][-1].is_unharmed:
                    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # it is not empty
        parent.rmdir()
    yield from ((scenario, found[scenario.name]) for scenario in chosen)


def _in_a_process(scenario: Scenario, folder: Path, cluster: Cluster, seed: int) -> Aftermath:
    """One repetition on a cluster that is whole, in a process of its own, because scenarios change its PATH."""
    words = [sys.executable, "-m", "benchmarks.chaos", scenario.name, f"--inside={folder}", f"--seed={seed}"]
    started = time.monotonic()
    try:
        cluster.restore()
        if scenario.alone:
            cluster.clear()
        done = subprocess.run(words, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False)
    except (TimeoutError, subprocess.SubprocessError) as error:
        return _unfinished_aftermath(scenario, f"{type(error).__name__}: {error}", time.monotonic() - started)
    if done.returncode == 0:
        return Aftermath.model_validate_json(done.stdout.splitlines()[-1])
    last = (done.stderr.strip().splitlines() or ["no word"])[-1]
    print(done.stderr, file=sys.stderr, flush=True)
    seconds = time.monotonic() - started
    return Aftermath(
        scenario=scenario.name, num_trials=scenario.num_trials, wrong=1, seconds=seconds, note=f"a traceback: {last}"
    )


def _print(found: Aftermath, folder: Path) -> None:
    _, *numbers = counts([found])
    said = ", ".join(f"{name} {count}" for name, count in zip(COLUMNS[2:], numbers, strict=True))
    print(f"{found.scenario}: {said} ({found.seconds:.0f} s)", flush=True)
    if found.note:
        print(f"    {found.note}", flush=True)
    if not found.is_unharmed:
        print(f"    {folder}", flush=True)


def page(done: Sequence[tuple[Scenario, Sequence[Aftermath]]], circumstances: str) -> str:
    """docs/reliability.md, ending in a newline; the circumstances are when, of which commit and with what."""
    rows = [(scenario.harm, *counts(found)) for scenario, found in done]
    total = ("**all**", *counts([each for _, found in done for each in found]))
    return "\n".join((HEADING, f"{circumstances}\n", *table_lines(COLUMNS, [*rows, total], "---:"), ""))


def counts(found: Sequence[Aftermath]) -> tuple[str, ...]:
    """Repetitions, and the sums of `NUMBERS`."""
    sums = [sum(getattr(each, name) for each in found) for name in NUMBERS]
    return tuple(f"{number:,}" for number in (len(found), *sums))


if __name__ == "__main__":
    sys.exit(main())
