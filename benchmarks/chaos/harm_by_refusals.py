"""Scenarios: commands that are refused, between others; what they leave of the folder is compared with what was."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from benchmarks.chaos.cluster import command, wait_for
from benchmarks.chaos.judge import Wanted
from benchmarks.chaos.person import Person
from benchmarks.chaos.scenario import scenario

REFUSED = (
    ("sweep", "controller=slurm", "controller.time_limit_minutes=2"),
    ("sweep", "slurm.time_limit_minutes=0"),
    ("sweep", "training.num_steps=-1"),
    ("sweep", "training.nosuch=1"),
    ("sweep", "trainer.command=[/no/such/program]"),
    ("sweep", "trainer.start=nosuch"),
    ("sweep", "sweep.max_trials=0"),
    ("sweep", "launcher=nosuch"),
    ("sweep", "+sweep.axes={training.nosuch: [1]}"),
    ("sweep", "budget.device_hours=-1"),
    ("sweep", "--nosuch"),
    ("retry",),
    ("retry", "--trial=nosuch"),
    ("cancel", "--trial=nosuch"),
    ("cancel", "--training=nosuch"),
    ("status", "cluster=nosuch"),
    ("report", "training.nosuch=1"),
    ("pause", "nosuch=1"),
    ("resume", "nosuch=1"),
    ("advance", "nosuch=1"),
    ("logs", "nosuch"),
)
REFUSED_BY_SLURM = (
    ("sweep", "slurm.constraint=nosuch"),
    ("sweep", "slurm.partition=nosuch"),
    ("sweep", "+slurm.extra_sbatch.qos=nosuch"),
    ("sweep", "+slurm.extra_sbatch.nosuch=1"),
)
"""Where a trial is to be submitted."""

NUM_IN_EACH_STATE = 12
Content = dict[str, str]
OF_THE_HOLDER = {"sweep.lock"}
"""It says who holds the folder, and then who did last."""


@scenario(
    "refused commands of all kinds, on a sweep that waits, is cancelled, has failed and is complete",
    num_trials=2,
    by_hand=True,
    repetitions=1,
)
def refused_commands(person: Person) -> None:
    person.give("sweep", "+slurm.extra_sbatch.hold=true", code=0)
    _refuse(person, "waits")
    person.give("cancel", code=0)
    person.until_idle()
    wait_for(lambda: set(person.states().values()) == {"CANCELLED"})  # and is written down
    _refuse(person, "is cancelled")
    person.give("advance")
    person.require(not person.deeds(), "advance started what had been cancelled")
    (person.folder / "fail-2").touch()
    person.finish()
    _refuse(person, "has failed")
    (person.folder / "fail-2").unlink()
    person.finish("--retry-failed")
    _refuse(person, "is complete")
    person.wanted = Wanted({})


def _refuse(person: Person, state: str) -> None:
    """Some commands that end in a refusal, and change nothing."""
    submits = {"is cancelled": (), "has failed": ("--retry-failed",), "is complete": ("--remeasure",)}.get(state)
    by_slurm = () if submits is None else [(*words, *submits) for words in REFUSED_BY_SLURM]
    for words in (*by_slurm, *person.chance.sample(REFUSED, NUM_IN_EACH_STATE)):
        before, jobs = content_of(person.runs), _jobs(person)
        person.num_faults += 1
        said = person.give(*words)
        person.require(said.code == 2, f"{words} ended with {said.code} on a sweep that {state}: {said.text[-200:]}")
        person.require(said.err.strip(), f"{words} was refused without a word")
        after = content_of(person.runs)
        changed = sorted(each for each in {*before, *after} if before.get(each) != after.get(each))
        person.require(not changed, f"{words} was refused on a sweep that {state}, and changed {changed[:4]}")
        person.require(_jobs(person) == jobs, f"{words} was refused, and changed the queue")


def content_of(folder: Path) -> Content:
    """Of every file its mode and the digest of its bytes; where a link leads."""
    found = {}
    for above, folders, files in os.walk(folder):
        for name in {*folders, *files} - OF_THE_HOLDER:
            path = Path(above, name)
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                told = str(path.readlink())
            else:
                told = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(status.st_mode) else ""
            found[str(path)] = f"{status.st_mode:o} {told}"
    return found


def _jobs(person: Person) -> list[str]:
    lines = command("squeue", "--noheader", "--array", "--states=PD,R", "--format=%i %j %Z").splitlines()
    return sorted(line for line in lines if str(person.folder) in line)
