"""The learning rate of each step: a linear warm-up, then the shape that `training.schedule` names. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable

from conf.types.schema import RateSchedule, TrainingPlan

FALLS: dict[RateSchedule, Callable[[float], float]] = {
    "linear": lambda progress: 1 - progress,
    "wsd": lambda progress: 1 - progress,
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
}
"""By schedule, what is left between the highest rate and the lowest after such a part of the fall."""


def learning_rate_at(step: int, plan: TrainingPlan) -> float:
    """The rate of a step, which counts from 1.

    Source: Megatron-LM, megatron/core/optimizer_param_scheduler.py, for the shapes and their names; WSD is of
    arXiv 2404.06395, section 4, with a linear decay (arXiv 2405.18392, section 3).
    """
    warmup, highest, lowest = plan.learning_rate_warmup_steps, plan.learning_rate, plan.min_learning_rate
    if step <= warmup:
        return highest * step / warmup
    if plan.schedule == "constant":
        return highest
    if plan.schedule == "inverse-square-root":
        return max(lowest, highest * math.sqrt(max(1, warmup) / step))
    begin = warmup if plan.schedule != "wsd" else max(warmup, plan.num_steps - plan.num_decay_steps)
    # At least 1, for a plan that ends with its warm-up has no steps to divide by.
    progress = (step - begin) / max(1, plan.num_steps - begin)
    return lowest + (highest - lowest) * FALLS[plan.schedule](min(1.0, max(0.0, progress)))
