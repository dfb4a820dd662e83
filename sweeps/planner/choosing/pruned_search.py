"""Search many spaces at once for their best families, without pricing those that cannot be among them.

Families are taken in the order of their bounds (`plans.bounds`), and within a family only the plans whose own bound is
still below the last of the best. What comes out is what pricing everything gives, which tests do.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf

import numpy as np

from conf.grouped import grouped
from costs.counts.parameters import num_parameters
from costs.setting import Floats, Integers
from sweeps.planner.choosing.objectives import PlanObjective, objective_value
from sweeps.planner.plans.blocks import PlanGrid, blocks_of, families
from sweeps.planner.plans.bounds import Bounds
from sweeps.planner.plans.space import Family, Space
from sweeps.planner.plans.whole_space import Found, Tally, take_in

LIKELY_FOR_EACH = 2
"""Families that are likely to fit and are taken first, for each of the best that are asked for."""
WHOLE_BYTES_PER_PARAMETER, SHARED_BYTES_PER_PARAMETER, LIKELY_SHARE = 6, 12, 0.75
"""Mixed precision under ZeRO-1, with room for activations: they decide the order of families and nothing else."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """A family with its bounds.

    Attributes:
        number: of its space.
        micro_batch_sizes: those that it may have, (b,).
        values: what the objective says at best of plans with each of them, (b,).
    """

    number: int
    family: Family
    micro_batch_sizes: Integers
    values: Floats

    @property
    def least(self) -> float:
        return float(self.values.min())


class Prospects:
    """Families of many spaces with their bounds."""

    def __init__(self, spaces: Sequence[Space]) -> None:
        self.spaces = spaces
        self._bounds = {kind: Bounds(alike) for kind, alike in grouped(spaces, _kind).items()}

    def search(
        self,
        numbers: Sequence[int],
        objective: PlanObjective,
        top: int,
        longest_step_seconds: Sequence[float],
        below: float = inf,
    ) -> tuple[list[Found], int]:
        """Return what was found in each of the spaces of these numbers, and how many of their families were left out.

        The `top` best families of all and the `top` best plans of all are among what was found, as far as the objective
        is below a limit.
        """
        prospects = self._in_order(numbers, objective, top)
        tallies = {number: Tally(top, longest_step_seconds[number]) for number in numbers}
        best: list[float] = []
        taken = 0
        for prospect in prospects:
            limit = min(below, best[top - 1] if len(best) >= top else inf)
            if prospect.least >= limit:
                continue
            taken += 1
            tally = tallies[prospect.number]
            self._take_in(prospect, objective, limit, tally)
            if prospect.family in tally.families:
                seconds = tally.families[prospect.family].least
                insort(best, objective_value(objective, self.spaces[prospect.number], seconds))
        return [tally.result() for tally in tallies.values()], len(prospects) - taken

    def _in_order(self, numbers: Sequence[int], objective: PlanObjective, top: int) -> list[Prospect]:
        """All families: first a few that are likely to fit, so that there soon is a limit, then by their bounds."""
        by_bound = sorted(self._prospects(numbers, objective), key=lambda prospect: prospect.least)
        likely = list(islice(filter(self._is_likely_to_fit, by_bound), LIKELY_FOR_EACH * top))
        chosen = set(map(id, likely))
        return [*likely, *(prospect for prospect in by_bound if id(prospect) not in chosen)]

    def _is_likely_to_fit(self, prospect: Prospect) -> bool:
        """True if weights, gradients and an optimizer state that replicas share out take a part of the memory."""
        space, sizes = self.spaces[prospect.number], prospect.family.sizes
        held = num_parameters(space.setting.model) / (sizes.tensor * sizes.pipeline * prospect.family.expert)
        needed = held * (WHOLE_BYTES_PER_PARAMETER + SHARED_BYTES_PER_PARAMETER / sizes.num_replicas)
        return needed < LIKELY_SHARE * space.room_bytes

    def _take_in(self, prospect: Prospect, objective: PlanObjective, limit: float, tally: Tally) -> None:
        """Price the plans of a family that may still be among the best."""
        space = self.spaces[prospect.number]
        # A micro-batch whose bound reaches the limit has no plan below it, so that its columns are not built.
        wanted = set(prospect.micro_batch_sizes[prospect.values < limit].tolist())
        found = blocks_of(space, prospect.family, wanted)
        if limit < inf:
            found = self._promising_blocks(found, space, limit / objective_value(objective, space, 1.0))
        take_in(found, space.room_bytes, self._bounds[_kind(space)], tally)

    def _promising_blocks(self, found: Iterable[PlanGrid], space: Space, longest: float) -> Iterator[PlanGrid]:
        """The blocks without what cannot fit, and without shards and layouts whose bounds are longer than `longest`."""
        bounds = self._bounds[_kind(space)]
        for block in found:
            # The block is cut to shards, layouts and ZeRO stages with some such plan; it remains a grid of all their
            # combinations.
            kept = block.legal & (bounds.of_plans(block) < longest)
            shards, layouts = np.flatnonzero(kept.any(axis=(0, 2))), np.flatnonzero(kept.any(axis=(0, 1)))
            stages = np.flatnonzero(bounds.bytes_by_zero_stage(block) <= space.room_bytes)
            if shards.size and stages.size:
                yield replace(block.part(stages, shards, layouts), legal=kept[:, shards][:, :, layouts])

    def _prospects(self, numbers: Sequence[int], objective: PlanObjective) -> Iterator[Prospect]:
        for number in numbers:
            space = self.spaces[number]
            own = self._bounds[_kind(space)]
            factor = objective_value(objective, space, 1.0)  # every objective is proportional to the step's seconds
            for family in families(space):
                micro_batches, seconds = own.of(space, family)
                if len(micro_batches):
                    yield Prospect(number, family, micro_batches, np.asarray(seconds * factor))


def _kind(space: Space) -> str:
    """Spaces of one cluster and batch share what a shard takes."""
    return f"{space.setting.cluster.name} {space.global_batch_size}"
