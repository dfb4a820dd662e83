"""The begin and end of each pass of a pipeline, from the order in which stages run them and their seconds.

Every stage works its list of actions off, each as soon as what it needs has been computed by the neighbour.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from train_core.parallel.schedules import Action


class TimedAction(NamedTuple):
    """One action of a stage, in seconds since the first stage began."""

    action: Action
    start: float
    end: float


def action_times(
    actions: Sequence[Sequence[Action]], seconds_of: Callable[[int, Action], float]
) -> list[list[TimedAction]]:
    """The actions of all stages in time.

    Args:
        actions: those of each stage, in the order in which it runs them.
        seconds_of: how long a stage takes for an action, what it sends at its end included.
    """
    num_stages, num_chunks = len(actions), 1 + max((action.chunk for action in actions[0]), default=0)
    ended: dict[tuple[int, Action], float] = {}
    timed: list[list[TimedAction]] = [[] for _ in actions]
    while any(len(done) < len(listed) for done, listed in zip(timed, actions, strict=True)):
        before = len(ended)
        for stage, listed in enumerate(actions):
            _advance(stage, listed, timed[stage], ended, seconds_of, (num_stages, num_chunks))
        assert len(ended) > before, "the stages wait for each other"
    return timed


def _advance(
    stage: int,
    listed: Sequence[Action],
    done: list[TimedAction],
    ended: dict[tuple[int, Action], float],
    seconds_of: Callable[[int, Action], float],
    sizes: tuple[int, int],
) -> None:
    """Let one stage go on until it needs what is not there yet."""
    free = done[-1].end if done else 0.0
    # By its number, because slices of a long list would be copied each time that the stage goes on.
    for number in range(len(done), len(listed)):
        action = listed[number]
        needed = _needed(stage, action, *sizes)
        if needed is None:
            start = free
        elif needed in ended:
            start = max(free, ended[needed])
        else:
            return
        free = start + seconds_of(stage, action)
        ended[stage, action] = free
        done.append(TimedAction(action, start, free))


def _needed(stage: int, action: Action, num_stages: int, num_chunks: int) -> tuple[int, Action] | None:
    """The stage and action whose output an action takes; None where it takes token ids."""
    if action.kind == "weight":
        return stage, action._replace(kind="backward")
    if action.kind == "forward":
        if stage > 0:
            return stage - 1, action
        return (num_stages - 1, action._replace(chunk=action.chunk - 1)) if action.chunk > 0 else None
    if stage < num_stages - 1:
        return stage + 1, action
    if action.chunk < num_chunks - 1:
        return 0, action._replace(chunk=action.chunk + 1)
    return stage, action._replace(kind="forward")
