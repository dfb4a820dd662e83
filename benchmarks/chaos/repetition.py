"""One repetition of a scenario, and the process of its own in which it takes place, because scenarios change PATH."""

from __future__ import annotations

import subprocess
import time
import traceback
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.chaos.aftermath import Aftermath
from benchmarks.chaos.catalogue import CATALOGUE
from benchmarks.chaos.cluster import Cluster
from benchmarks.chaos.scenario import Scenario

LONGEST_SECONDS = 1200
_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


def run(scenario: Scenario, folder: Path, cluster: Cluster, seed: int = 0) -> Aftermath:
    started = time.monotonic()
    bench = scenario.bench(folder, cluster, f"{seed} {folder.name}")
    problem = ""
    try:
        scenario.run(bench)
    except (TimeoutError, subprocess.SubprocessError) as error:
        return scenario.broken_off(f"{type(error).__name__}: {error}", time.monotonic() - started)
    except AssertionError as error:
        problem = f"{type(error).__name__}: {error}"
    found = bench.aftermath(scenario.name, time.monotonic() - started)
    if problem:  # what was asserted on the way counts as an outcome that is wrong
        note = "; ".join(filter(None, (problem, found.note)))
        found = found.model_copy(update={"wrong": found.wrong + 1, "note": note})
    return found


def run_apart(scenario: Scenario, folder: Path, cluster: Cluster, seed: int) -> Aftermath:
    """The same in a process of its own, on a cluster that is whole."""
    started = time.monotonic()
    try:
        cluster.restore()
        if scenario.alone:
            cluster.clear()
    except (TimeoutError, subprocess.SubprocessError) as error:
        return scenario.broken_off(f"{type(error).__name__}: {error}", time.monotonic() - started)
    here, there = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_run_and_tell, args=(there, scenario.name, folder, cluster.folder, seed))
    process.start()
    there.close()
    if not here.poll(LONGEST_SECONDS):
        process.kill()
        return scenario.broken_off(f"it took longer than {LONGEST_SECONDS} s", time.monotonic() - started)
    found = _received(here) or _wrong_as_a_whole(scenario, "its process was killed", time.monotonic() - started)
    process.join()
    return found


def _received(pipe: Connection) -> Aftermath | None:
    try:
        found: Aftermath = pipe.recv()
    except EOFError:
        return None
    return found


def _run_and_tell(pipe: Connection, name: str, folder: Path, cluster: Path, seed: int) -> None:
    scenario, started = CATALOGUE[name], time.monotonic()
    try:
        found = run(scenario, folder, Cluster(cluster), seed)
    except Exception:
        traceback.print_exc()
        last = traceback.format_exc().strip().splitlines()[-1]
        found = _wrong_as_a_whole(scenario, f"a traceback: {last}", time.monotonic() - started)
    pipe.send(found)


def _wrong_as_a_whole(scenario: Scenario, note: str, seconds: float) -> Aftermath:
    found = scenario.broken_off(note, seconds)
    return found.model_copy(update={"broken_off": 0, "wrong": 1, "note": note})
