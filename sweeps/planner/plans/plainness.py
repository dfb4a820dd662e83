"""How far plans depart from the plainest that people run, and what that counts: of near equals the plainer is proposed.

Each departure counts as if the step took `DEPARTURE_SHARE` longer, and what is proposed has the shortest step with all
of them counted. Two predictions for one machine are off against each other by 6 % in four pairs of five, so that of two
plans the one that is 1 % faster on paper is the faster one in no more than 58 of 100 cases.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from costs.setting import Booleans, Floats, Integers, Plans, Setting, repeats
from costs.step.schedule import ZERO_BUBBLE
from sweeps.memory_odds import LIKELY, MemoryOdds

UNLIKELY = f"less than {LIKELY:.0%} likely to fit"
DEPARTURE_SHARE = 0.01
MOST_COUNTED = 1 + 13 * DEPARTURE_SHARE
"""What a second counts at most: that of a plan with every departure."""


def departures(setting: Setting, plans: Plans, peak_bytes: Integers) -> dict[str, Booleans]:
    """In words, what people do without where they can; and which of the plans have it.

    Args:
        peak_bytes: memory that each plan takes, of the shape that all columns make together.
    """
    p, layers = plans.pipeline_parallel_size, setting.model.num_layers
    odds = MemoryOdds.of(setting.implementation.name, int(plans.world_size.flat[0]))
    return {
        "tensor ranks": plans.tensor_parallel_size > 1,
        "a pipeline": p > 1,
        "context ranks": plans.context_parallel_size > 1,
        "experts on several ranks": plans.expert_parallel_size > 1,
        "sizes that are not powers of two": _has_odd_sizes(plans),
        # Where stages cannot be equal, no spread is a departure.
        "uneven layers": (layers % p == 0) & ~_is_even(plans, layers),
        "the zero-bubble schedule": plans.schedule == ZERO_BUBBLE,
        "pointwise recomputation": repeats(setting, plans.recompute, "outputs"),
        "recomputation in some layers": plans.recompute_every > 1,
        "ZeRO groups": (plans.zero_stage > 0) & (setting.zero_group_size is not None),
        "the optimizer in the host's memory": (p > 0) & setting.offload_optimizer,
        "stages of a replica side by side": (p > 1) & setting.pipeline_before_data,
        UNLIKELY: peak_bytes > odds.room_bytes(setting.cluster.device.memory_bytes),
    }


def handicap(setting: Setting, plans: Plans, peak_bytes: Integers) -> Floats:
    """What the step counts as, over what it takes: at least 1."""
    numbers: Any = sum(mask.astype(np.float64) for mask in departures(setting, plans, peak_bytes).values())
    return np.asarray(1 + DEPARTURE_SHARE * numbers)


def _is_even(plans: Plans, num_layers: int) -> Booleans:
    """True where all chunks hold as many layers."""
    even = num_layers // plans.pipeline_parallel_size
    ends = (plans.first_stage_layers == even) & (plans.last_stage_layers == even)
    return np.asarray(ends & (even % plans.virtual_pipeline_size == 0))


def _has_odd_sizes(plans: Plans) -> Booleans:
    names = ("tensor_parallel_size", "context_parallel_size", "expert_parallel_size", "micro_batch_size")
    odd: Booleans = np.zeros(1, dtype=bool)
    for size in (getattr(plans, name) for name in names):
        odd = odd | (size & (size - 1) > 0)
    return odd
