"""Ranks that hold the same weights must hold the same bits: checksums find a replica that has diverged."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from conf.errors import TrainingError
from conf.units import count_of
from train_core.parallel.collectives import Axis, all_gather
from train_core.parallel.groups import gather_objects
from train_core.parallel.mesh import Mesh
from train_core.parallel.parallelize import Stage
from train_core.watch.hang import ranks_text

INTEGERS = {4: torch.int32, 2: torch.int16}
"""By the size of an element. Sums of floats would round small differences away; sums of integers keep them."""


class Difference(NamedTuple):
    """Ranks of one group that do not hold the same bits.

    Attributes:
        ranks: all that were compared.
        odd: those that differ from the majority; all of them where there is no majority.
        parameter: the first that differs.
    """

    axis: str
    ranks: tuple[int, ...]
    odd: tuple[int, ...]
    parameter: str

    def __str__(self) -> str:
        """`rank 2 differs from ranks 0-1, 3 over the data axis`, or `ranks 0, 2 differ over the data axis`."""
        if self.odd == self.ranks:
            return f"{ranks_text(self.ranks)} differ over the {self.axis} axis"
        others = ranks_text(set(self.ranks) - set(self.odd))
        return f"{ranks_text(self.odd)} differ{'s' * (len(self.odd) == 1)} from {others} over the {self.axis} axis"


def require_equal_replicas(stage: Stage, mesh: Mesh, step: int) -> None:
    """Compare every parameter over the replicas, and over the tensor axis those that each of its ranks holds whole.

    Raises:
        TrainingError: some ranks differ. Every rank of the job raises it, with the same words.
    """
    named = stage.named_parameters()
    sums = torch.stack([checksum(parameter) for _, parameter in named])  # (parameters)
    names = [name for name, _ in named]
    whole = [index for index, name in enumerate(names) if "tensor" in stage.placements[name].copied_over]
    # Experts have other replicas than the rest. All ranks that are compared hold the same parameters, and in one order.
    groups = defaultdict[tuple[str, ...], list[int]](list)
    for index, name in enumerate(names):
        groups[stage.placements[name].reduced_over].append(index)
    compared = [*((mesh.axis(*axes), indices) for axes, indices in groups.items()), (mesh.tensor, whole)]
    differences = (
        _difference([names[index] for index in indices], all_gather(sums[indices][None], axis).wait(), axis)
        for axis, indices in compared
        if indices
    )
    # Told to all before anybody raises, because whoever raised alone would leave the others waiting. And what one group
    # cannot tell, such as which of its two ranks is wrong, may follow from what another has found.
    told = gather_objects([found for found in differences if found is not None], mesh.world)
    if found_anywhere := sorted({found for of_rank in told for found in of_rank}, key=_by_weight):
        raise _divergence_error(found_anywhere, step)


def checksum(values: Tensor) -> Tensor:
    """The sum of the elements, whose bits are taken for integers: any single flipped bit changes it."""
    return values.detach().contiguous().view(INTEGERS[values.element_size()]).sum(dtype=torch.int64)


def _difference(names: Sequence[str], of_ranks: Tensor, axis: Axis) -> Difference | None:
    """The difference between the sums of all ranks of an axis (ranks, parameters); None where there is none."""
    differing = (of_ranks != of_ranks[0]).any(dim=0).nonzero().flatten().tolist()
    if not differing:
        return None
    assert axis.line is not None
    first = differing[0]
    told = dict(zip(axis.line.ranks, of_ranks[:, first].tolist(), strict=True))
    (common, count), *_ = Counter(told.values()).most_common()
    odd = tuple(rank for rank, value in told.items() if value != common)
    # The majority is taken to be right. Where there is none, nobody can say who is.
    return Difference(axis.line.name, tuple(told), odd if 2 * count > axis.size else tuple(told), names[first])


def _by_weight(difference: Difference) -> tuple[bool, int, tuple[int, ...]]:
    """Those that say most come first: the ones with a majority, and of them the one with the most ranks."""
    return difference.odd == difference.ranks, -len(difference.ranks), difference.ranks


def _divergence_error(differences: Sequence[Difference], step: int) -> TrainingError:
    in_all = set.intersection(*(set(found.odd) for found in differences))
    suspected = in_all or {rank for found in differences for rank in found.odd}
    blamed = next(iter(in_all)) if len(in_all) == 1 else None
    doubt = "" if blamed is not None else " (which of them is wrong cannot be told)"
    return TrainingError(
        f"the weights diverged by step {step}: {_all_of(differences)}, first in {differences[0].parameter}{doubt}",
        f"Suspect a device or link of {ranks_text(suspected)}: leave"
        f" {'its node' if len(suspected) == 1 else 'their nodes'} out, and go on from a checkpoint before this step.",
        blamed,
        suspects_device=True,
    )


def _all_of(differences: Sequence[Difference]) -> str:
    """The first two say where to look; after a long divergence hundreds of groups may differ."""
    words = " and ".join(str(found) for found in differences[:2])
    if (further := len(differences) - 2) <= 0:
        return words
    return f"{words}, and {count_of(further, 'more group')} differ{'s' if further == 1 else ''}"
