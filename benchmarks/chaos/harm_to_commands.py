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
    """Half of them while programs wait before their last step, so that none completes as it is cancelled."""
    person.begin()
    person.until("start", 4)
    _kill_commands(person, NUM_KILLS // 2)
    person.release()
    _carry_on(person)
    _kill_commands(person, NUM_KILLS // 2)
    _carry_on(person)


def _kill_commands(person: Person, times: int) -> None:
    for _ in range(times):
        words = person.chance.choice(COMMANDS)
        person.harm(person.killed, person.chance.uniform(0, LONGEST_LIFE_SECONDS), *words)
        said = person.give(*words)
        person.require(said.code in (0, 2, GOES_ON), f"{words} given again ended with {said.code}: {said.text[-200:]}")


def _carry_on(person: Person) -> None:
    for words in (("resume",), ("sweep",), *(("retry", f"--trial=seed={seed}") for seed in person.seeds)):
        person.needed.append(words[0] if len(words) == 1 else "retry --trial")
        person.give(*words)  # refused where there is nothing to do
    person.finish()
