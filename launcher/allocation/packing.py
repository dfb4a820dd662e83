"""Choosing the trials that share an allocation at once, and the nodes and devices of each; nothing is started here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from sweeps.folder.submission import JobShape
from sweeps.reading import TrialReading
from sweeps.trial import Trial

START_SECONDS = 60.0
"""Assumed for importing, meeting and leaving until a trial has shown how long that takes."""


class StepPlacement(NamedTuple):
    """The nodes that a step of an allocation gets, and the numbers of its devices, the same on every node."""

    nodes: tuple[str, ...]
    devices: tuple[int, ...]


class WaitingTrial(NamedTuple):
    """A trial that waits.

    Attributes:
        seconds: for how long it is expected to run.
    """

    trial_id: str
    shape: JobShape
    seconds: float


@dataclass
class Room:
    """The devices that each of an allocation's nodes has, and which are held. No two trials hold the same device."""

    devices: Mapping[str, int]
    held: dict[str, StepPlacement] = field(default_factory=dict)

    @property
    def num_free(self) -> int:
        return sum(len(self._free_devices(node)) for node in self.devices)

    def could_hold(self, shape: JobShape) -> bool:
        """True if the allocation has room for the shape while nothing else runs."""
        return Room(self.devices).place(shape) is not None

    def place(self, shape: JobShape, closed: Collection[str] = ()) -> StepPlacement | None:
        """Return where a trial of this shape may run now, on no closed node, or None. Nothing is taken yet.

        The fullest nodes that still have room come first, so that empty ones stay whole for larger trials.
        """
        free = {node: self._free_devices(node) for node in self.devices if node not in closed}
        fitting = [node for node, numbers in free.items() if len(numbers) >= shape.devices_per_node]
        fullest_first = sorted(fitting, key=lambda node: len(free[node]))
        for first in range(len(fitting) - shape.num_nodes + 1):
            chosen = fullest_first[first : first + shape.num_nodes]
            # The same numbers on every node, because one CUDA_VISIBLE_DEVICES holds for all tasks of a step.
            common = sorted(set.intersection(*(set(free[node]) for node in chosen)))
            if len(common) >= shape.devices_per_node:
                nodes = tuple(node for node in self.devices if node in chosen)
                return StepPlacement(nodes, tuple(common[: shape.devices_per_node]))
        return None

    def take(self, trial_id: str, placement: StepPlacement) -> None:
        assert trial_id not in self.held
        self.held[trial_id] = placement

    def give_back(self, trial_id: str) -> None:
        self.held.pop(trial_id, None)

    def leave_out(self, nodes: Collection[str]) -> None:
        """Place nothing on these nodes any more; what runs there runs on."""
        self.devices = {node: count for node, count in self.devices.items() if node not in nodes}

    def _free_devices(self, node: str) -> list[int]:
        taken = {number for each in self.held.values() if node in each.nodes for number in each.devices}
        return [number for number in range(self.devices[node]) if number not in taken]


def choose_steps(
    candidates: Iterable[WaitingTrial], room: Room, remaining_seconds: Mapping[str, float]
) -> list[tuple[WaitingTrial, StepPlacement]]:
    """Choose the candidates for which there is room now, in their order, and take that room.

    The first that finds no room gets the nodes that are free soonest. A later one may pass it on these nodes only if it
    is expected to have ended by then (backfill), so that a large trial does not wait for ever behind small ones.

    Args:
        remaining_seconds: of each running trial, as expected.
    """
    chosen: list[tuple[WaitingTrial, StepPlacement]] = []
    remaining = dict(remaining_seconds)
    reserved: frozenset[str] = frozenset()
    begins = 0.0
    for each in candidates:
        closed = reserved if each.seconds > begins else frozenset[str]()
        if placement := room.place(each.shape, closed):
            room.take(each.trial_id, placement)
            # A reservation further down has to know for how long this one holds its devices.
            remaining[each.trial_id] = each.seconds
            chosen.append((each, placement))
        # Only the first that waits gets nodes reserved; with more of them hardly anything could pass.
        elif not reserved and room.could_hold(each.shape):
            reserved, begins = _reservation(each.shape, room, remaining)
    return chosen


def _reservation(shape: JobShape, room: Room, remaining_seconds: Mapping[str, float]) -> tuple[frozenset[str], float]:
    """The nodes that have room for the shape soonest, and in how many seconds the last of them does."""
    soonest = sorted(
        (_seconds_until(shape.devices_per_node, node, room, remaining_seconds), node) for node in room.devices
    )
    used = soonest[: shape.num_nodes]
    return frozenset(node for _, node in used), used[-1][0]


def _seconds_until(wanted: int, node: str, room: Room, remaining_seconds: Mapping[str, float]) -> float:
    """Return the seconds until so many of the node's devices are free, if trials end when they are expected to."""
    held = {trial_id: len(each.devices) for trial_id, each in room.held.items() if node in each.nodes}
    ends = sorted((remaining_seconds.get(trial_id, 0.0), size) for trial_id, size in held.items())
    free = room.devices[node] - sum(held.values())
    for seconds, size in [(0.0, 0), *ends]:
        free += size
        if free >= wanted:
            return seconds
    return float("inf")


@dataclass(frozen=True)
class Expectation:
    """The time that a trial of an allocation should take.

    Attributes:
        start_seconds: of a trial beside its steps.
        ratio: of a measured step to the predicted one.
        limit_seconds: after which a trial is ended.
    """

    limit_seconds: float
    start_seconds: float = START_SECONDS
    ratio: float = 1.0

    @classmethod
    def after(cls, readings: Iterable[TrialReading], limit_seconds: float) -> Expectation:
        """Expect of other trials what the measured ones took: medians, as few may stand out."""
        starts, ratios = list[float](), list[float]()
        for each in readings:
            if each.measurement and each.performance and each.trial.estimate:
                took, step_seconds = each.measurement.ended - each.measurement.started, each.performance.step_seconds
                starts.append(max(0.0, took - step_seconds * each.num_steps))
                ratios.append(step_seconds / each.trial.estimate.step_seconds)
        return cls(limit_seconds, median(starts), median(ratios)) if ratios else cls(limit_seconds)

    def seconds(self, trial: Trial) -> float:
        if trial.estimate is None or trial.experiment is None:
            return self.limit_seconds
        steps = self.ratio * trial.estimate.step_seconds * trial.experiment.training.num_steps
        return min(self.limit_seconds, self.start_seconds + steps)
