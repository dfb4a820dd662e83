"""The runs of `make chaos` at one commit, and the page that shows them together."""

from __future__ import annotations

import fcntl
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from benchmarks.chaos.aftermath import Aftermath
from benchmarks.chaos.catalogue import CATALOGUE
from benchmarks.marked_tables import table_lines

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
RUNS = Path(__file__).with_name("runs.jsonl")
NAMES_OF_OWN = ("docs/reliability.md", "benchmarks/chaos/runs.jsonl")
"""What a run writes, which does not make another commit of the next."""

HEADING = """\
<!-- Written by `make chaos`; do not edit. -->
# Reliability

What goes wrong on clusters, done to real sweeps on a real Slurm: [four emulated nodes on one
machine](slurm.md#a-slurm-cluster-on-your-own-machine). The training alone is made up: it sleeps, and counts its
executions. After each fault the sweep is carried on with the commands in the second column and no others, until nothing
more is to come; `sweep` is the command by which it was begun.

"Lost" are trials that have no end although nothing more will be done, and finished ones whose result is gone; "run
twice" those that ran to completion more than once; "wrong" those whose end, numbers or row in the report are not what
was done to them. A traceback, code of somebody else's that ran, a refused command that changed a file, or an answer
that is not true counts as one wrong more. "Broken off" are repetitions in which the harm itself could not be done. The
judge shares no code with what it judges: it reads files, and counts what the programs wrote down beside the folder.

Each harm begins on a cluster whose daemons run and whose nodes are all up, in an order that a seed shuffles. A run of
`make chaos` adds itself to those at the same commit; at another one it begins the page anew.
`make chaos OPTIONS="--seed N"` repeats one.

Not done here: network file systems, cgroups, real GPUs, power failures of a whole machine.
"""
NUMBERS = ("num_faults", "num_trials", "lost", "twice", "wrong", "broken_off")
COLUMNS = ("harm", "commands", "repetitions", "faults", "trials", "lost", "run twice", "wrong", "broken off")


class ChaosRun(BaseModel):
    """All that one run of every scenario found, and where."""

    seed: int
    commit: str
    date: str
    slurm: str
    machine: str
    minutes: float
    found: tuple[Aftermath, ...]


def add(run: ChaosRun) -> None:
    """Keep the run beside those of its commit, and write the page; another process may do the same."""
    with PAGE.open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = map(ChaosRun.model_validate_json, RUNS.read_text().splitlines() if RUNS.exists() else ())
        runs = [*(each for each in kept if each.commit == run.commit and each.seed != run.seed), run]
        RUNS.write_text("".join(f"{each.model_dump_json(exclude_defaults=True)}\n" for each in runs))
        PAGE.write_text(page(runs))


def page(runs: Sequence[ChaosRun]) -> str:
    """docs/reliability.md, ending in a newline."""
    found = [each for run in runs for each in run.found]
    rows = [
        _row(scenario.harm, [each for each in found if each.scenario == scenario.name])
        for scenario in CATALOGUE.values()
    ]
    total = ("**all**", "", *counts(found))
    table = table_lines(COLUMNS, [*rows, total], "---:")
    return "\n".join((HEADING, *map(_circumstances, runs), "", *table, ""))


def _circumstances(run: ChaosRun) -> str:
    what = f"{sum(each.num_faults for each in run.found)} faults in {run.minutes:.0f} minutes"
    return f"- Seed {run.seed}: {what}, on {run.date} at commit {run.commit} with {run.slurm}, on {run.machine}."


def _row(harm: str, found: Sequence[Aftermath]) -> tuple[str, ...]:
    commands = dict.fromkeys(command for each in found for command in each.commands)
    return (harm, ", ".join(f"`{command}`" for command in commands), *counts(found))


def counts(found: Sequence[Aftermath]) -> tuple[str, ...]:
    """Repetitions, and the sums of `NUMBERS`."""
    sums = [sum(getattr(each, name) for each in found) for name in NUMBERS]
    return tuple(f"{number:,}" for number in (len(found), *sums))
