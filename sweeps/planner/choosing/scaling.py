"""Predicted scaling: the best plan for every number of devices, and how well each uses them.

The pinned knobs say which plans take part. With all of them pinned, it is one layout whose data-parallel size grows
with the devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from conf.errors import ConfigError
from conf.units import count_of
from sweeps.planner.choosing.choice import Candidate, best_of
from sweeps.planner.choosing.objectives import ScalingKind
from sweeps.planner.plans.space import Space


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """The best plan on one number of devices.

    Attributes:
        candidate: the plan; None where no plan exists or none fits.
        efficiency: tokens per second and device, relative to the smallest number of devices with a plan.
    """

    world_size: int
    global_batch_size: int
    candidate: Candidate | None
    efficiency: float | None


def scaling_curve(spaces: Sequence[Space], kind: ScalingKind) -> list[ScalingPoint]:
    """A point for each space's number of devices, ascending.

    Strong scaling keeps the batch. Weak scaling grows it with the devices, up to the given one on the largest number.

    Raises:
        ConfigError: the batch cannot be shared out so, or nothing fits anywhere.
    """
    ascending = sorted(spaces, key=lambda space: space.world_size)
    scaled = [_scale(space, ascending[-1], kind) for space in ascending]
    candidates = best_of(scaled)
    rates = [_rate(candidate) for candidate in candidates if candidate is not None]
    if not rates:
        raise ConfigError("--scaling", kind, "finds no number of devices on which a plan fits", "Offer more devices.")
    return [
        ScalingPoint(
            space.world_size,
            space.global_batch_size,
            candidate,
            None if candidate is None else _rate(candidate) / rates[0],
        )
        for space, candidate in zip(scaled, candidates, strict=True)
    ]


def _scale(space: Space, largest: Space, kind: ScalingKind) -> Space:
    if kind == "strong":
        return space
    sequences, left = divmod(space.global_batch_size * space.world_size, largest.world_size)
    if left or not sequences:
        problem = f"on {count_of(largest.world_size, 'device')} makes no whole batch on {space.world_size}"
        remedy = "Choose a batch that the numbers of devices divide, or other numbers with --devices."
        raise ConfigError("batch.global_batch_size", space.global_batch_size, problem, remedy)
    return replace(space, global_batch_size=sequences)


def _rate(candidate: Candidate) -> float:
    """Sequences per second and device."""
    return candidate.space.global_batch_size / candidate.step_seconds / candidate.space.world_size


def doublings(world_size: int, devices_per_node: int) -> list[int]:
    """Numbers of devices that double up to `world_size`, from no less than one node."""
    # They are halved downwards, since it is the largest number that was given. All must fill whole nodes.
    sizes = [world_size]
    while sizes[-1] % 2 == 0 and sizes[-1] // 2 >= devices_per_node and sizes[-1] // 2 % devices_per_node == 0:
        sizes.append(sizes[-1] // 2)
    return sizes[::-1]
