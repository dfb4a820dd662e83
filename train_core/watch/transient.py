"""A search for the ranks that a value which was not finite may have come from when it does not come again."""

from __future__ import annotations

from collections.abc import Sequence

from train_core.axes import ENDS, IN_REPLICA, REPLICAS, Layout
from train_core.optimizer.optimizer import OwnShare


def suspects(layout: Layout, shares: Sequence[OwnShare]) -> list[int]:
    """The ranks whose device or links may have made the value, in rank order; all of them where nothing tells.

    Args:
        shares: what each rank of the world added to the loss and the norm, in rank order.
    """
    everybody = list(range(layout.world_size))
    # A loss is a sum over nothing but one replica's own passes, through all of its stages.
    if wrong := [rank for rank in everybody if not shares[rank].loss]:
        return sorted({other for rank in wrong for other in layout.ranks(rank, *IN_REPLICA)})
    found = _of_gradients(layout, [rank for rank in everybody if not shares[rank].gradient])
    return found or _of_sums(layout, shares) or everybody


def _of_gradients(layout: Layout, bad: list[int]) -> list[int]:
    """The stage that backward passes reach first, on every replica: gradients are summed before they are looked at.

    With several chunks on a rank that may be any stage, as a share does not say of which chunk it is.
    """
    if layout.pipeline_is_ring:
        return sorted({other for rank in bad for other in layout.ranks(rank, "pipeline", *REPLICAS)})
    last = max((layout.coordinates(rank).pipeline for rank in bad), default=0)
    first_hit = [rank for rank in bad if layout.coordinates(rank).pipeline == last]
    return sorted({other for rank in first_hit for other in layout.ranks(rank, *REPLICAS)})


def _of_sums(layout: Layout, shares: Sequence[OwnShare]) -> list[int]:
    """All whose gradients went into such a sum: over an axis, or over the two ends of the pipeline."""
    found = set[int]()
    for rank, share in enumerate(shares):
        for group in share.sums:
            summed = layout.ends(rank) if group == ENDS else layout.ranks(rank, group)
            found |= {replica for other in summed for replica in layout.ranks(other, *REPLICAS)}
    return sorted(found)
