"""Zero-bubble against 1F1B: the longest chain of passes that wait for each other, in recorded steps.

python -m benchmarks timeline

Every pass of a real step is timed by its rank's own CPU time, because ranks may share cores here. The chain is what the
step would take with a core for each rank and transfers that take no time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.target import Target, at_most
from benchmarks.trainer import DEEP_PIPELINE, answers_of_ranks, experiment_of
from conf.plan.experiment import Experiment
from train_core.parallel.schedules import Action
from train_core.process.world import Seat, choose_device, file_rendezvous, join, leave
from train_core.training.trainer import Trainer

NUM_ROUNDS, NUM_STEPS = 3, 4
Timeline = list[tuple[Action, float]]
"""The actions of a stage, in order, each with its seconds."""


class Recorded(list[Action]):
    """A list of actions that notes, whenever it is iterated over, how many CPU seconds passed before the next one."""

    def __iter__(self) -> Iterator[Action]:
        self.timeline: Timeline = []
        for action in super().__iter__():
            start = time.thread_time()
            yield action
            self.timeline.append((action, time.thread_time() - start))


def main() -> list[Target]:
    ratios = [recorded_chain_seconds("zero-bubble") / recorded_chain_seconds("1f1b") for _ in range(NUM_ROUNDS)]
    name = "pp4, 4 micro-batches: longest chain of recorded passes, zero-bubble to 1F1B"
    return [at_most(name, 0.95, median(ratios))]


def recorded_chain_seconds(schedule: str) -> float:
    """The shortest chain of a few steps. The first step is left out, because it allocates."""
    experiment = experiment_of(DEEP_PIPELINE | {"parallel.schedule": schedule})
    steps = list(zip(*answers_of_ranks(experiment, _timelines), strict=True))
    return min(chain_seconds(step) for step in steps[1:])


def _timelines(rank: int, experiment: Experiment, folder: Path) -> list[Timeline]:
    """Those of one stage, one for each step."""
    seat = Seat(rank, experiment.parallel.world_size, rank, file_rendezvous(folder / "rendezvous"))
    world = join(seat, choose_device("cpu", rank))
    trainer, timelines = Trainer(experiment, world, folder), []
    # The trainer iterates over its list of actions once a step, so a list that takes notes needs no other hook.
    actions = trainer.actions = Recorded(trainer.actions)
    for step in range(1, NUM_STEPS + 1):
        trainer.step(step)
        timelines.append(actions.timeline)
    leave(world)
    return timelines


def chain_seconds(stages: Sequence[Timeline]) -> float:
    """Seconds from the first pass to the last, if every stage runs its list of passes as soon as it can.

    Each stage has one model chunk: a forward pass waits for the stage before, a backward pass for the stage after.
    """
    ended: dict[tuple[int, Action], float] = {}
    clock, following = [0.0] * len(stages), [0] * len(stages)
    while any(position < len(stage) for position, stage in zip(following, stages, strict=True)):
        for index, stage in enumerate(stages):
            while following[index] < len(stage):
                action, seconds = stage[following[index]]
                # Weight gradients wait for nobody, which an index beyond the last stage stands for.
                neighbour = index + {"forward": -1, "backward": 1, "weight": len(stages)}[action.kind]
                if 0 <= neighbour < len(stages) and (neighbour, action) not in ended:
                    break
                start = max(clock[index], ended.get((neighbour, action), 0.0))
                clock[index] = ended[index, action] = start + seconds
                following[index] += 1
    return max(clock)
