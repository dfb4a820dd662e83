"""Which groups of replicas cannot share out the optimizer's state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conf.errors import InfeasiblePlan
from conf.remedies import largest_share

if TYPE_CHECKING:
    from conf.setup import Setup

KEY = "parallel.zero_group_size"


def check_zero_groups(setup: Setup) -> None:
    """Refuse groups that leave some replicas over, since all groups hold the same shards.

    Raises:
        InfeasiblePlan: names the number of replicas and a size that divides it.
    """
    size, replicas = setup.parallel.zero_group_size, setup.data_parallel_size * setup.parallel.context_parallel_size
    if size is None or replicas % size == 0:
        return
    names = "data_parallel_size" + (" x context_parallel_size" if setup.parallel.context_parallel_size > 1 else "")
    fitting = largest_share([replicas], below=size)
    problem = f"does not divide the {replicas} replicas of a stage ({names})"
    raise InfeasiblePlan(KEY, size, problem, f"Use {KEY}={fitting}, or null for one group of all of them.")
