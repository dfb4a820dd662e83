"""docs/reliability.md: every scenario of `make chaos`, and what it found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.chaos.scenario import Scenario
from benchmarks.chaos.workbench import Aftermath
from benchmarks.marked_tables import table_lines

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


def page(done: Sequence[tuple[Scenario, Sequence[Aftermath]]], circumstances: str) -> str:
    """The whole page, ending in a newline; the circumstances are when, of which commit and with what it was run."""
    rows = [(scenario.harm, *counts(found)) for scenario, found in done]
    total = ("**all**", *counts([each for _, found in done for each in found]))
    return "\n".join((HEADING, f"{circumstances}\n", *table_lines(COLUMNS, [*rows, total], "---:"), ""))


def counts(found: Sequence[Aftermath]) -> tuple[str, ...]:
    """Repetitions, and the sums of `NUMBERS`."""
    sums = [sum(getattr(each, name) for each in found) for name in NUMBERS]
    return tuple(f"{number:,}" for number in (len(found), *sums))
