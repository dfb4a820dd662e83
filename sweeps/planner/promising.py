"""Search many spaces at once for their best families, without pricing those that cannot be among them.

Families are taken in the order of their bounds (`sweeps.planner.bounds`), and within a family only the micro-batches
whose bound is still below the last of the best. What comes out is what pricing everything gives, which tests do.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from sweeps.planner.blocks import blocks_of, families
from sweeps.planner.bounds import Bounds
from sweeps.planner.objectives import Objective, objective_value
from sweeps.planner.search import take_in
from sweeps.planner.shard_work import ShardTables
from sweeps.planner.space import Sizes, Space, priced_batch_sizes, tensor_parallel_sizes
from sweeps.planner.tally import Found, Tally
from train_core.costs.setting import Floats, Integers


@dataclass(frozen=True, slots=True)
class Prospect:
    """A family with its bounds.

    Attributes:
        number: of its space.
        micro_batch_sizes: those that it may have, (b,).
        values: what the objective says at best of plans with each of them, (b,).
    """

    number: int
    sizes: Sizes
    micro_batch_sizes: Integers
    values: Floats

    @property
    def least(self) -> float:
        return float(self.values.min())


class Prospects:
    """Families of many spaces with their bounds."""

    def __init__(self, spaces: Sequence[Space]) -> None:
        self.spaces = spaces
        self._tables = _shared_tables(spaces)
        self._bounds: dict[str, Bounds] = {}

    def search(
        self, numbers: Sequence[int], objective: Objective, top: int, longest_step_seconds: Sequence[float]
    ) -> tuple[list[Found], int]:
        """What was found in each of the spaces of these numbers, and how many of their families were left out.

        The `top` best families of all and the `top` best plans of all are among what was found.
        """
        prospects = sorted(self._prospects(numbers, objective), key=lambda prospect: prospect.least)
        tallies = {number: Tally(top, longest_step_seconds[number]) for number in numbers}
        best: list[float] = []
        taken = 0
        for prospect in prospects:
            limit = best[top - 1] if len(best) >= top else inf
            if prospect.least >= limit:
                break
            taken += 1
            tally = tallies[prospect.number]
            self._take_in(prospect, limit, tally)
            if prospect.sizes in tally.families:
                seconds = tally.families[prospect.sizes][0]
                insort(best, objective_value(objective, self.spaces[prospect.number], seconds))
        return [tally.found() for tally in tallies.values()], len(prospects) - taken

    def _take_in(self, prospect: Prospect, limit: float, tally: Tally) -> None:
        """Price the plans of a family whose micro-batches may still be among the best."""
        space = self.spaces[prospect.number]
        wanted = set(prospect.micro_batch_sizes[prospect.values < limit].tolist())
        found = blocks_of(space, prospect.sizes, wanted)
        take_in(found, space.room_bytes, self._tables[_kind(space)], tally)

    def _prospects(self, numbers: Sequence[int], objective: Objective) -> Iterator[Prospect]:
        for number in numbers:
            space = self.spaces[number]
            own = self._bounds.setdefault(_kind(space), Bounds(space, self._tables[_kind(space)]))
            factor = objective_value(objective, space, 1.0)  # every objective is proportional to the step's seconds
            for sizes in families(space):
                micro_batches, seconds = own.of(space, sizes)
                if len(micro_batches):
                    yield Prospect(number, sizes, micro_batches, np.asarray(seconds * factor))


def _kind(space: Space) -> str:
    """Spaces of one cluster differ in their number of devices alone, and share what a shard takes."""
    return f"{space.setting.cluster.name} {space.global_batch_size}"


def _shared_tables(spaces: Sequence[Space]) -> dict[str, ShardTables]:
    of_kind: dict[str, list[Space]] = {}
    for space in spaces:
        of_kind.setdefault(_kind(space), []).append(space)
    return {
        kind: ShardTables(
            group[0].setting,
            sorted({size for space in group for size in tensor_parallel_sizes(space)}),
            priced_batch_sizes(group[0]),
        )
        for kind, group in of_kind.items()
    }
