"""The boxes of the model's parameters that a rank holds, which is how a checkpoint knows them.

A checkpoint knows parameters by name and shape, and stores boxes of them; a rank holds a run of consecutive elements of
a flat bucket. A run of a matrix is cut into at most three boxes (here elements 2 to 11 of three rows and five columns):

    row 0    .  .  a  a  a      the end of a row
    row 1    b  b  b  b  b      whole rows
    row 2    c  c  .  .  .      the start of a row

Under ZeRO-3 a rank holds rows of every parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from train_core.parallel.data_parallel import BucketMember, FlatReplicas, Replicas, shard_range
from train_core.parallel.mesh import Mesh
from train_core.parallel.parallelize import Placement, Stage

if TYPE_CHECKING:
    from train_core.parallel.fully_sharded import FullySharded


class Box(NamedTuple):
    """A box of a parameter of the whole model, whose elements lie in a flat tensor, one after the other.

    Attributes:
        name: the parameter's name in the whole model.
        shape: the shape of the whole parameter.
        offsets: the first index in each dim.
        sizes: the extent in each dim.
        start: where the first element lies in the flat tensor.
    """

    name: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    start: int

    def of(self, flat: Tensor) -> Tensor:
        """The box in a flat tensor, as a view."""
        return flat[self.start : self.start + prod(self.sizes)].view(self.sizes)


def own_boxes(replicas: Replicas) -> list[list[Box]]:
    """The boxes in which the elements of each part lie that this rank updates."""
    if not isinstance(replicas, FlatReplicas):
        return [_rows(replicas, index) for index in range(len(replicas.parameters))]
    return [_boxes(replicas, index, replicas.range_of(index)) for index in range(len(replicas.buckets))]


def boxes_to_write(replicas: Replicas) -> list[list[Box]]:
    """The boxes that this rank writes into a checkpoint, so that together all ranks write everything once."""
    if isinstance(replicas, FlatReplicas):
        # Under ZeRO-0 all replicas hold everything. Each still writes only a share, so that the work is divided.
        shares = [_boxes(replicas, index, shard_range(bucket)) for index, bucket in enumerate(replicas.buckets)]
    else:
        shares = own_boxes(replicas)
    counted = [replicas.mesh.counts(treatment) for treatment in replicas.treatments]
    return [boxes if is_counted else [] for boxes, is_counted in zip(shares, counted, strict=True)]


def _boxes(replicas: FlatReplicas, index: int, held: range) -> list[Box]:
    # The optimizer's states are as long as what this rank updates, so that boxes count from its first element.
    origin, members = replicas.range_of(index).start, replicas.buckets[index].members
    return [box for member in members for box in boxes_of(member, held, origin, replicas.stage, replicas.mesh)]


def _rows(replicas: FullySharded, index: int) -> list[Box]:
    (name, parameter), shape, mesh = replicas.parameters[index], replicas.shapes[index], replicas.mesh
    local = parameter.to_local()
    # Where a parameter has fewer rows than there are replicas, the last of them have none.
    if not local.numel():
        return []
    # FSDP2 gives each replica as many rows as the first one has, until there are none left.
    per_replica = -(-shape[0] // mesh.replicas.size)
    offsets = (mesh.replicas.rank * per_replica,) + (0,) * (len(shape) - 1)
    return [box_in_whole(replicas.stage.placements[name], shape, offsets, tuple(local.shape), 0, mesh)]


def boxes_of(member: BucketMember, held: range, origin: int, stage: Stage, mesh: Mesh) -> Iterator[Box]:
    """The boxes of a parameter's elements that are among the elements `held` of its bucket.

    Args:
        origin: the element of the bucket from which the boxes' starts are counted.
    """
    placement, shape = stage.placements[member.name], tuple(member.parameter.shape)
    # Where a member lies outside `held`, `first` is not below `stop`, and the loop below yields nothing.
    first = max(held.start, member.start)
    stop = min(held.stop, member.start + member.parameter.numel())
    start = first - origin
    for offsets, sizes in row_boxes(shape, first - member.start, stop - member.start):
        yield box_in_whole(placement, shape, offsets, sizes, start, mesh)
        start += prod(sizes)


def box_in_whole(
    placement: Placement, shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int], start: int, mesh: Mesh
) -> Box:
    """A box of this rank's part, which has the given shape, as a box of the whole parameter."""
    whole, first = list(shape), list(offsets)
    # The ranks of an axis hold equal parts, so that sizes and offsets in the whole follow from this rank's own.
    for name, dim in placement.splits.items():
        axis = mesh.axis(name)
        whole[dim] *= axis.size
        first[dim] += shape[dim] * axis.rank
    return Box(placement.name, tuple(whole), tuple(first), tuple(sizes), start)


def row_boxes(shape: Sequence[int], first: int, stop: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Offsets and sizes, in order, of the boxes that cover elements `first` up to `stop` of a vector or a matrix."""
    if len(shape) == 1:
        if first < stop:
            yield (first,), (stop - first,)
        return
    _, width = shape
    while first < stop:
        row, column = divmod(first, width)
        # Whole rows can be taken together only from a row's start. A run that begins inside a row first completes it.
        rows = (stop - first) // width if column == 0 else 0
        sizes = (rows, width) if rows else (1, min(width - column, stop - first))
        yield (row, column), sizes
        first += prod(sizes)
