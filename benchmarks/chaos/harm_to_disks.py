"""Scenarios: the disk is full, or has no inodes left, in the last second of trials; then there is room again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

from benchmarks.chaos.person import Person, disk
from benchmarks.chaos.scenario import scenario

SETTLED_SECONDS = 3.0
"""The disk stays full for so long after the programs have ended."""


@scenario("the disk is full as trials print their last step; then there is room", num_trials=3, by_hand=True)
def disk_full_in_the_last_second(person: Person) -> None:
    with disk(person.runs, "size=30m"):
        _end_on_a_full_disk(person, _fill_with_bytes)


@scenario("no inode is left as trials print their last step; then there are some", num_trials=3, by_hand=True)
def no_inodes_in_the_last_second(person: Person) -> None:
    with disk(person.runs, "size=60m", "nr_inodes=3000"):
        _end_on_a_full_disk(person, _fill_with_files)


@scenario("the disk is full as jobs begin; then there is room", num_trials=3, by_hand=True, repetitions=1)
def disk_full_as_jobs_begin(person: Person) -> None:
    with disk(person.runs, "size=30m"):
        person.give("sweep", "+slurm.extra_sbatch.hold=true", code=0)
        person.harm(_fill_with_bytes, person.runs)
        person.let_go()
        time.sleep(SETTLED_SECONDS * 2)
        _make_room(person.runs)
        person.until_idle()
        person.finish()
        person.take_stock()


@scenario(
    "the disk is full for one command after another while jobs run; then there is room", num_trials=2, by_hand=True
)
def disk_full_for_commands(person: Person) -> None:
    with disk(person.runs, "size=30m"):
        person.begin()
        person.until("start", 2)
        _fill_with_bytes(person.runs)
        for words in (("status",), ("report",), ("pause",), ("cancel",), ("sweep",), ("retry", "--failed")):
            person.harm(person.give, *words)
        _make_room(person.runs)
        person.release()
        person.give("resume")
        person.needed.append("resume")
        person.finish()
        person.take_stock()


def _end_on_a_full_disk(person: Person, fill: Callable[[Path], None]) -> None:
    person.begin()
    person.until("last", len(person.seeds))  # what is printed before is on the disk
    for _ in person.seeds:
        person.harm(lambda: None)  # each trial meets it
    fill(person.runs)
    person.release()
    person.until("complete", len(person.seeds))
    time.sleep(SETTLED_SECONDS)
    _make_room(person.runs)
    person.until_idle()
    person.finish()
    person.take_stock()


def _fill_with_bytes(runs: Path) -> None:
    with (runs / "filler-0").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 65536)
    with (runs / "filler-1").open("wb", buffering=0) as file, suppress(OSError):
        while True:  # the last page that a larger write does not take
            file.write(b"x")


def _fill_with_files(runs: Path) -> None:
    with suppress(OSError):
        for number in count():
            (runs / f"filler-{number}").touch()


def _make_room(runs: Path) -> None:
    for entry in os.scandir(runs):
        if entry.name.startswith("filler-"):
            Path(entry.path).unlink()
