"""Turns a step's predicted seconds into money, energy and device-hours, and limits of those into seconds."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal, get_args

from conf.errors import ConfigError
from conf.units import SECONDS_PER_HOUR
from sweeps.planner.plans.space import Space

PlanObjective = Literal["time", "cost", "energy", "device-hours"]
PLAN_OBJECTIVES: tuple[PlanObjective, ...] = get_args(PlanObjective)
BETTER: dict[PlanObjective, str] = {
    "time": "faster",
    "cost": "cheaper",
    "energy": "less energy",
    "device-hours": "fewer device-hours",
}
"""The word for what is smaller by an objective."""
ScalingKind = Literal["weak", "strong"]
SCALING_KINDS: tuple[ScalingKind, ...] = get_args(ScalingKind)


@dataclass(frozen=True, slots=True)
class Training:
    """The length of the whole training, and the limits on what it may cost.

    Attributes:
        num_steps: optimizer steps of the whole training; None where nobody said.
        budget_dollars: for the whole training.
        deadline_hours: of the whole training.
    """

    num_steps: int | None = None
    budget_dollars: float | None = None
    deadline_hours: float | None = None


def steps_for(num_tokens: int, tokens_per_step: int) -> int:
    """The smallest whole number of steps that sees at least so many tokens."""
    return -(-num_tokens // tokens_per_step)  # integers: a quotient of floats is not exact above 2**53


def tokens_per_step(space: Space) -> int:
    return space.global_batch_size * space.setting.model.seq_length


def dollars_per_second(space: Space) -> float | None:
    """Return what all devices of the job cost together each second; None if the cluster's file names no price."""
    price = space.setting.cluster.device.price_per_hour
    return None if price is None else space.world_size * price / SECONDS_PER_HOUR


def required_dollars_per_second(space: Space) -> float:
    """Return what all devices of the job cost together each second, for callers that cannot do without a price.

    Raises:
        ConfigError: the cluster's device has no price.
    """
    rate = dollars_per_second(space)
    if rate is None:
        raise ConfigError(
            "cluster.device.price_per_hour",
            None,
            f"is not known for cluster {space.setting.cluster.name} ({space.setting.cluster.device.name}), and money"
            " was asked for",
            "Set cluster.device.price_per_hour=DOLLARS, or leave out what asks for money.",
        )
    return rate


def watts(space: Space) -> float:
    """Design power of all devices of the job. Hosts, network and cooling are not counted."""
    return space.world_size * space.setting.cluster.device.watts


def objective_value(objective: PlanObjective, space: Space, step_seconds: float) -> float:
    """The figure that the best plan keeps smallest: seconds of a step, or dollars, joules or device-hours per token."""
    # Figures are per token, not per step, so that spaces with batches of different sizes can be compared.
    tokens = tokens_per_step(space)
    if objective == "cost":
        return required_dollars_per_second(space) * step_seconds / tokens
    if objective == "energy":
        return watts(space) * step_seconds / tokens
    if objective == "device-hours":
        return space.world_size * step_seconds / SECONDS_PER_HOUR / tokens
    return step_seconds


def longest_step_seconds(space: Space, training: Training) -> float:
    """The slowest step with which the whole training still keeps every limit; infinite where there is no limit.

    A limit in hours or dollars becomes one in seconds of a step, because that is all that a search ranks.
    """
    longest = inf
    if training.deadline_hours is not None:
        longest = training.deadline_hours * SECONDS_PER_HOUR / _steps(training, "--deadline", training.deadline_hours)
    if training.budget_dollars is not None:
        seconds = training.budget_dollars / required_dollars_per_second(space)
        longest = min(longest, seconds / _steps(training, "--budget", training.budget_dollars))
    return longest


def _steps(training: Training, limit: str, value: float) -> int:
    if training.num_steps is None:
        remedy = "Say how much with --tokens N or --steps N."
        raise ConfigError(limit, value, "limits a whole training, and nothing says how long that is", remedy)
    return training.num_steps


def total_hours(training: Training, step_seconds: float) -> float | None:
    """Hours that the whole training takes; None where its length is not known."""
    return None if training.num_steps is None else training.num_steps * step_seconds / SECONDS_PER_HOUR


def total_dollars(training: Training, space: Space, step_seconds: float) -> float | None:
    """Dollars that the whole training costs; None where its length or the price is not known."""
    rate = dollars_per_second(space)
    return None if training.num_steps is None or rate is None else training.num_steps * step_seconds * rate
