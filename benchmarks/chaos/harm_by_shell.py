"""Scenarios: variables of the shell that Slurm's tools read, names of jobs changed, tools that fail or say more."""

from __future__ import annotations

import os

from benchmarks.chaos.cluster import command
from benchmarks.chaos.harm_to_slurm import stand_in
from benchmarks.chaos.judge import Wanted
from benchmarks.chaos.person import Person
from benchmarks.chaos.scenario import scenario

VARIABLES = (
    {"SBATCH_JOB_NAME": "mine"},
    {"SBATCH_ARRAY_INX": "0-1"},
    {"SLURM_JOB_NAME": "mine", "SLURM_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": "7", "SLURM_PROCID": "3"},
    {"SBATCH_EXPORT": "NONE", "SBATCH_OUTPUT": "/dev/null", "SBATCH_ERROR": "/dev/null"},
    {"SQUEUE_FORMAT": "%t", "SQUEUE_STATES": "PD", "SQUEUE_SORT": "-i", "SQUEUE_USERS": "nobody"},
    {"SACCT_FORMAT": "jobid", "SACCT_FEDERATION": "1", "SLURM_TIME_FORMAT": "relative"},
    {"SBATCH_WAIT": "1", "SBATCH_NO_REQUEUE": "1", "SBATCH_OPEN_MODE": "append"},
    {"SCANCEL_STATE": "PENDING", "SCANCEL_NAME": "mine", "SCANCEL_INTERACTIVE": "true"},
)
BANNERS = """
echo "Welcome to the cluster. Job 99999999 of 2025 is the last."
echo "Maintenance: Sunday." >&2
/usr/bin/sbatch "$@"
code=$?
echo "Have a nice day 4711"
exit $code"""
SCANCEL_FAILS = 'echo "scancel: error: Kill job error on job id 1: Access/permission denied" >&2; exit 1'


@scenario(
    "variables of the user's shell: SBATCH_*, SLURM_*, SQUEUE_*, SACCT_*, SCANCEL_*",
    num_trials=3,
    by_hand=True,
    repetitions=1,
)
def variables_of_the_shell(person: Person) -> None:
    """A sweep for each of them is begun, cancelled and carried on."""
    for number, variables in enumerate(VARIABLES):
        person.num_faults += 1
        person.name = f"shell-{number}"
        person.describe(person.name, person.seeds)
        person.hold()
        before = len(person.deeds("complete"))
        started = len(person.deeds())
        person.give("sweep", code=0, **variables)
        person.until("start", started + 3)
        states = person.states()
        person.require(set(states.values()) == {"RUNNING"}, f"with {variables} status says {states}")
        said = person.give("cancel", code=0, **variables)
        person.require("3 trials cancelled" in said.text, f"with {variables} cancel says {said.text}")
        person.until_idle()
        person.release()
        person.variables = variables
        person.finish()
        person.variables = {}
        person.wanted = Wanted({}, num_forgotten=before)
        person.take_stock()


@scenario(
    "scontrol update jobname of a running job; the command and cancel are given",
    num_trials=3,
    by_hand=True,
    repetitions=1,
)
def job_renamed(person: Person) -> None:
    person.begin()
    person.until("start", 3)
    for seed, job in person.jobs().items():
        if seed < 3:
            person.harm(command, "scontrol", "update", f"jobid={job}", f"jobname=other-{seed}")
    states = person.states()
    person.require(set(states.values()) == {"RUNNING"}, f"status says {states}")
    person.give("cancel", "--trial=seed=1", code=0)
    person.wanted = Wanted({person.trial_of(1).name: ("CANCELLED",)})
    person.sweep()
    left = command("squeue", "--noheader", "--array", "--format=%i", "--states=R,PD").split()
    person.require(person.jobs()[1] not in left, "cancel leaves the renamed job")
    person.release()
    person.finish()


@scenario("a running job is renamed, and the sweep cancelled", num_trials=3, by_hand=True, repetitions=1)
def renamed_and_cancelled(person: Person) -> None:
    person.begin()
    person.until("start", 3)
    jobs = person.jobs()
    person.harm(command, "scontrol", "update", f"jobid={jobs[2]}", "jobname=other")
    said = person.give("cancel", code=0)
    person.until_idle()
    person.release()
    person.require("3 trials cancelled" in said.text, f"cancel says: {said.text}")
    person.wanted = Wanted({}, ("CANCELLED",))
    person.take_stock()
    person.wanted = Wanted({})
    person.finish()
    person.take_stock()


@scenario("scancel fails; later the command is given", num_trials=3, by_hand=True, repetitions=1)
def scancel_fails(person: Person) -> None:
    person.begin()
    person.until("start", 3)
    with stand_in(person.folder, "scancel", SCANCEL_FAILS):
        for words in (("cancel",), ("cancel", "--trial=seed=2")):
            person.num_faults += 1
            said = person.give(*words)
            person.require(said.code != 0, f"{words} ended with 0, though scancel failed: {said.text}")
            looked = person.give("status")
            person.require("Cancelled" not in looked.out, f"status says that it is cancelled: {looked.text}")
    person.release()
    person.finish()


@scenario("sbatch prints banners before and after its answer", num_trials=3, by_hand=True, repetitions=1)
def sbatch_with_banners(person: Person) -> None:
    with stand_in(person.folder, "sbatch", BANNERS):
        person.harm(person.begin)
        person.until("start", 3)
        states = person.states()
        person.require(set(states.values()) == {"RUNNING"}, f"status says {states}")
        person.release()
        person.finish()


@scenario(
    "squeue knows no job, sacct says RUNNING, and the jobs are silent for over a minute",
    num_trials=2,
    by_hand=True,
    repetitions=1,
)
def silent_and_unknown(person: Person) -> None:
    person.begin()
    person.until("start", 2)
    with stand_in(person.folder, "squeue", "exit 0"):
        for _ in range(6):
            for beat in (person.sweep_folder / "trials").glob("*/heartbeat"):
                old = beat.stat().st_mtime - 90
                os.utime(beat, (old, old))
            person.harm(person.sweep)
    person.release()
    person.finish()
