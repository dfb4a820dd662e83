"""Scenarios: commands are killed at random instants, and given again."""

from __future__ import annotations

from benchmarks.chaos.person import Person
from benchmarks.chaos.scenario import scenario

COMMANDS = (
    *(("status",), ("report",), ("cancel",), ("cancel", "--trial=seed=2"), ("retry", "--failed")),
    *(("retry", "--trial=seed=3"), ("sweep",), ("pause",), ("resume",), ("advance",)),
)
GOES_ON = 75
"""The exit code of `advance` for cron: there is more to come."""

NUM_KILLS, LONGEST_LIFE_SECONDS = 30, 1.2


@scenario(
    "kill -9 of commands at 30 random instants, each given again: status, report, cancel, retry, sweep, pause, advance",
    num_trials=4,
    by_hand=True,
    repetitions=1,
)
def commands_killed(person: Person) -> None:
    person.give("sweep", code=0)
    for _ in range(NUM_KILLS):
        words = person.chance.choice(COMMANDS)
        person.harm(person.killed, person.chance.uniform(0, LONGEST_LIFE_SECONDS), *words)
        said = person.give(*words)
        person.require(said.code in (0, 2, GOES_ON), f"{words} given again ended with {said.code}: {said.text[-200:]}")
    person.give("resume")
    person.needed.append("resume")
    person.finish()
    if set(person.states().values()) - {"COMPLETED"}:
        person.finish("--retry-failed")
    for trial in [trial for trial, state in person.states().items() if state == "CANCELLED"]:
        person.needed.append("retry --trial")
        person.give("retry", f"--trial={trial}", code=0)
    person.finish()
