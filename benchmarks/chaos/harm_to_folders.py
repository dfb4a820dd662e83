"""Scenarios: folders are copied, moved, linked elsewhere, or deleted in part, while jobs run in them."""

from __future__ import annotations

import shutil
import time

from benchmarks.chaos.cluster import command
from benchmarks.chaos.judge import Wanted
from benchmarks.chaos.person import Person, disk
from benchmarks.chaos.scenario import scenario

SETTLED_SECONDS = 2.0


@scenario(
    "cancel, retry, status, report and sweep in a copy of the folder, while its jobs run", num_trials=3, by_hand=True
)
def commands_in_a_copy(person: Person) -> None:
    person.begin()
    person.until("start", 3)
    copy = person.folder / "copy"
    shutil.copytree(person.runs, copy)
    jobs = person.jobs().values()
    for words in (("status",), ("cancel",), ("retry", "--failed"), ("cancel", "--trial=seed=2"), ("report",)):
        person.harm(person.give, *words, f"output_dir={copy}")
    time.sleep(SETTLED_SECONDS)
    left = command("squeue", "--noheader", "--array", "--format=%i", f"--jobs={','.join(jobs)}").split()
    person.require(set(jobs) <= set(left), f"commands in a copy ended jobs: {left} are left of {list(jobs)}")
    person.release()
    person.finish()


@scenario(
    "the folder is moved while jobs run; the command is given at the new place",
    num_trials=3,
    by_hand=True,
    repetitions=1,
)
def folder_moved(person: Person) -> None:
    person.begin()
    person.until("start", 3)
    elsewhere = person.folder / "elsewhere"
    person.harm(person.runs.rename, elsewhere)
    person.release()
    person.until("complete", 3)
    person.runs, person.overrides = elsewhere, [*person.overrides, f"output_dir={elsewhere}"]
    person.until_idle()
    person.finish()


@scenario(
    "the folder is a link, which is turned to another disk, with a copy on it, while jobs run",
    num_trials=3,
    by_hand=True,
    repetitions=1,
)
def link_turned(person: Person) -> None:
    first, second = person.folder / "disk-1", person.folder / "disk-2"
    person.runs.rename(first)
    second.mkdir()
    with disk(first, "size=30m"), disk(second, "size=30m"):
        person.runs.symlink_to(first)
        person.begin()
        person.until("start", 3)
        shutil.copytree(first, second, dirs_exist_ok=True, symlinks=True)
        person.runs.unlink()
        person.harm(person.runs.symlink_to, second)
        person.release()
        person.until("complete", 3)
        person.until_idle()
        person.finish()
        person.take_stock()


@scenario("a trial's folder is deleted while its job runs", num_trials=3, by_hand=True, repetitions=1)
def trial_deleted(person: Person) -> None:
    person.begin()
    person.until("start", 3)
    gone = {deed.job for deed in person.deeds() if deed.trial == "2"}  # its result has no place any more
    person.wanted = Wanted({}, gone=gone)
    person.harm(shutil.rmtree, person.trial_of(2))
    person.sweep()
    time.sleep(SETTLED_SECONDS)
    person.release()
    person.finish()


@scenario("code/ is deleted while jobs wait; the command is given again", num_trials=3, by_hand=True, repetitions=1)
def code_deleted(person: Person) -> None:
    person.give("sweep", "+slurm.extra_sbatch.hold=true", code=0)
    person.harm(shutil.rmtree, person.sweep_folder / "code")
    person.let_go()
    person.until_idle()
    states = person.states()
    person.require(len(set(states.values())) == 1, f"one cause, and unlike ends: {states}")
    person.finish()
    if "FAILED" in person.states().values():
        person.finish("--retry-failed")


@scenario("every trial's submission.json is deleted while its job runs", num_trials=3, by_hand=True, repetitions=1)
def submissions_deleted(person: Person) -> None:
    person.begin()
    person.until("start", 3)
    for seed in person.seeds:
        person.harm((person.trial_of(seed) / "submission.json").unlink)
    person.sweep()
    person.release()
    person.until("complete", 3)
    person.finish()


@scenario("journal.jsonl and sweep.lock are deleted while jobs run", num_trials=3, by_hand=True, repetitions=1)
def journal_deleted(person: Person) -> None:
    person.begin()
    person.until("start", 3)
    for name in ("journal.jsonl", "sweep.lock"):
        person.harm((person.sweep_folder / name).unlink)
    person.sweep()
    person.release()
    person.finish()
