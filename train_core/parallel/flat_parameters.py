"""All parameters of a rank in a few flat buckets, each with a gradient of the same length.

    weights    | qkv.weight | projection.weight | up.weight | ... | padding |     parameters are views of it
    gradients  | qkv.weight | projection.weight | up.weight | ... | padding |     filled by the backward passes
               |  shard of replica 0   |  shard of replica 1   |   ...      |

So every later pass over parameters (the sum over replicas, the norm, the update) is one operation or one collective on
a bucket, never a loop over parameters. Which parameters share a bucket is said in `train_core.bucket_rules`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from train_core.bucket_rules import MAX_BUCKET_ELEMENTS, Treatment, bucketed, padded_length
from train_core.parallel.collectives import Axis
from train_core.parallel.mesh import Mesh
from train_core.parallel.parallelize import Stage


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
    uses = _num_uses(stage)
    buckets = bucketed(
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
    return Treatment(parameter.dim() > 1, placement.copied_over, placement.summed_over)


def _num_uses(stage: Stage) -> dict[int, int]:
    """The uses of each parameter in the stage, by its id: two for a tied embedding beside its head."""
    uses: dict[int, int] = {}
    for chunk in stage.chunks:
        for _, parameter in chunk.named_parameters(remove_duplicate=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    return uses


def _bucket(
    treatment: Treatment,
    named: list[tuple[str, nn.Parameter]],
    uses: dict[int, int],
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
