"""All parameters of a rank in a few flat buckets, each with a gradient of the same length.

    weights    | qkv.weight | projection.weight | up.weight | ... | padding |     parameters are views of it
    gradients  | qkv.weight | projection.weight | up.weight | ... | padding |     filled by the backward passes
               |  shard of replica 0   |  shard of replica 1   |   ...      |

So every later pass over parameters (the sum over replicas, the norm, the update) is one operation or one collective on
a bucket, never a loop over parameters. Which parameters share a bucket is said in `train_core.shared_rules`.

A checkpoint knows parameters by name and shape, and stores boxes of them; a rank holds a run of consecutive elements of
a flat bucket. A run of a matrix is cut into at most three boxes (here elements 2 to 11 of three rows and five columns):

    row 0    .  .  a  a  a      the end of a row
    row 1    b  b  b  b  b      whole rows
    row 2    c  c  .  .  .      the start of a row
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from train_core.parallel.collectives import Axis
from train_core.parallel.mesh import Mesh
from train_core.parallel.parallelize import Placement, Stage
from train_core.shared_rules import MAX_BUCKET_ELEMENTS, Treatment, bucket_members, padded_length


class BucketMember(NamedTuple):
    """A parameter's place in its bucket: elements `start` to `start + parameter.numel()`.

    Attributes:
        name: the parameter's name in this rank's stage.
        num_uses: how many modules have the parameter; each adds to its gradient in every backward pass.
    """

    name: str
    parameter: nn.Parameter
    start: int
    num_uses: int

    def of(self, flat: Tensor) -> Tensor:
        """The parameter's part of a tensor that is as long as the bucket, as a view."""
        return flat[self.start : self.start + self.parameter.numel()].view(self.parameter.shape)


@dataclass(frozen=True, eq=False)
class Bucket:
    """Weights (n) in the compute precision, gradients (n) in the accumulation precision.

    n is a multiple of the number of replicas, so that each has an equal shard.

    Attributes:
        replicas: the ranks over which the gradients are summed.
    """

    treatment: Treatment
    members: tuple[BucketMember, ...]
    weights: Tensor
    gradients: Tensor
    replicas: Axis


def flatten(
    stage: Stage, mesh: Mesh, gradient_dtype: torch.dtype = torch.float32, max_elements: int = MAX_BUCKET_ELEMENTS
) -> Iterator[Bucket]:
    """Move the parameters of `stage` into buckets, of which they become views, one bucket at a time."""
    # Two for a tied embedding beside its head: every module that has a parameter adds a gradient of its own to it.
    named = (each for chunk in stage.chunks for each in chunk.named_parameters(remove_duplicate=False))
    uses = Counter(id(parameter) for _, parameter in named)
    buckets = bucket_members(
        stage.named_parameters(),
        lambda named: treatment_of(stage, *named),
        lambda named: named[1].numel(),
        max_elements,
    )
    for treatment, members in buckets:
        yield _bucket(treatment, members, uses, gradient_dtype, mesh.axis(*treatment.reduced_over))


def treatment_of(stage: Stage, name: str, parameter: nn.Parameter) -> Treatment:
    """The treatment of one of this rank's parameters, alike on all ranks that hold it."""
    placement = stage.placements[name]
    # Matrices decay. What has one dim is a bias or the scale of a norm, whose size is not to be held down.
    return Treatment(parameter.dim() > 1, placement.copied_over, placement.summed_over, placement.reduced_over)


def _bucket(
    treatment: Treatment,
    named: list[tuple[str, nn.Parameter]],
    uses: Counter[int],
    gradient_dtype: torch.dtype,
    replicas: Axis,
) -> Bucket:
    members, used = list[BucketMember](), 0
    for name, parameter in named:
        members.append(BucketMember(name, parameter, used, uses[id(parameter)]))
        used += parameter.numel()
    length, first = padded_length(used, replicas.size), named[0][1]
    # Zeros, so that the padding adds nothing to a norm, and the update leaves it as it is.
    weights = torch.zeros(length, dtype=first.dtype, device=first.device)
    for member in members:
        member.of(weights).copy_(member.parameter.detach())
        # The data is replaced and not the parameter, which modules and the tied head go on sharing.
        member.parameter.data = member.of(weights)
    return Bucket(treatment, tuple(members), weights, weights.new_zeros(length, dtype=gradient_dtype), replicas)


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
    placement: Placement,
    shape: Sequence[int],
    offsets: Sequence[int],
    sizes: Sequence[int],
    start: int,
    mesh: Mesh,
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
