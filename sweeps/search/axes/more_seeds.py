"""The choice of points that deserve another seed: those whose mean so far is among the better half.

A single training says little where seeds differ. A point whose first seed is poor is not worth the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from conf.sweep_spec import Objective
from conf.tree import Tree
from sweeps.points.objectives import front
from sweeps.search.axes.seen_points import SeenPoint, with_seed
from sweeps.search.searcher import Proposal

FEWEST_POINTS = 4
"""Before so many points have ended, half of them is no measure of what is poor."""


def further_seeds(
    seen: Sequence[SeenPoint], objectives: Sequence[Objective], num_seeds: int, tree: Tree, *, is_last: bool
) -> list[Proposal]:
    """The next seed of each point that deserves it, best point first.

    Args:
        is_last: no further points will come, so that few ended ones are measure enough.
    """
    ended = [each for each in seen if each.costs is not None]
    if num_seeds == 1 or (len(ended) < FEWEST_POINTS and not is_last):
        return []
    better = _better_half(ended)
    waiting = [each for each in better if len(each.readings) < num_seeds and not each.is_in_flight]
    return [
        Proposal(
            with_seed(each.point, len(each.readings), tree),
            f"seed {len(each.readings) + 1} of {num_seeds}: the mean so far is among the better half",
        )
        for each in waiting
    ]


def _better_half(ended: Sequence[SeenPoint]) -> list[SeenPoint]:
    """The better half, best first; of several objectives the front first, then the front of the others."""
    left, ranked = list(ended), list[SeenPoint]()
    while left:
        best = front([each.costs or () for each in left])
        ranked += [left[number] for number in best]
        left = [each for number, each in enumerate(left) if number not in best]
    return ranked[: (len(ranked) + 1) // 2]
