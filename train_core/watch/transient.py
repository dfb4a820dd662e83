"""Which ranks a value that was not finite may have come from when it does not come again."""

from __future__ import annotations

from collections.abc import Sequence

from train_core.optimizer.optimizer import OwnShare
from train_core.parallel.mesh import Layout


def suspects(layout: Layout, shares: Sequence[OwnShare]) -> list[int]:
    """The ranks whose device or links may have made the value, in rank order; all of them where nothing tells.

    Args:
        shares: what each rank of the world added to the loss and the norm, in rank order.
    """
    everybody = list(range(layout.world_size))
    # A loss is a sum over nothing but one replica's own passes, through all of its stages.
    if replicas := {layout.coordinates(rank)[1] for rank in everybody if not shares[rank].loss}:
        return [rank for rank in everybody if layout.coordinates(rank)[1] in replicas]
    found = _of_gradients(layout, [rank for rank in everybody if not shares[rank].gradient])
    return found or _of_sums(layout, shares) or everybody


def _of_gradients(layout: Layout, bad: list[int]) -> list[int]:
    """The stage that backward passes reach first, on every replica: gradients are summed before they are looked at.

    With several chunks on a rank that may be any stage, as a share does not say of which chunk it is.
    """
    if layout.pipeline_is_ring:
        first_hit = [stage for rank in bad for stage in layout.pipeline_group(rank)]
    else:
        stages = [layout.coordinates(rank)[0] for rank in bad]
        first_hit = [rank for rank, stage in zip(bad, stages, strict=True) if stage == max(stages)]
    return sorted({other for rank in first_hit for other in layout.data_group(rank)})


def _of_sums(layout: Layout, shares: Sequence[OwnShare]) -> list[int]:
    """All whose gradients went into a sum over the tensor axis, or over the two ends of the pipeline."""
    found = set[int]()
    for rank, share in enumerate(shares):
        stages = layout.pipeline_group(rank)
        beside = [] if share.partial else layout.tensor_group(rank)
        ends = [] if share.tied else [stages[0], stages[-1]]
        found |= {replica for other in (*beside, *ends) for replica in layout.data_group(other)}
    return sorted(found)
