"""All parameters of a rank in a few flat buckets, each with a gradient of the same length.

Parameters that are treated alike share buckets: weight decay or none, counted in the global norm or not, gradient
complete or a summand. So every later pass over them is one operation or one collective on a bucket, never a loop over
parameters. Buckets are bounded, so that one can be reduced while gradients of the next are still made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor, nn

from train_core.parallel.mesh import Mesh
from train_core.parallel.parallelize import TIED_EMBEDDING, Stage

ALIGNMENT = 64  # elements; keeps every shard on a boundary that vector units and NCCL like
MAX_BUCKET_ELEMENTS = 2**25
"""Of a bucket with more than one parameter. Large enough for the full rate of a link, small enough for several."""


class Treatment(NamedTuple):
    """What the parameters of a bucket have in common.

    Attributes:
        decays: weight decay applies (matrices; not biases and norms).
        counted: this rank counts them in the global norm; of several ranks that hold the same values one does.
        partial: gradients are to be summed over the tensor axis.
        tied: gradients are to be summed over the two stages that hold the token embedding.
    """

    decays: bool
    counted: bool
    partial: bool
    tied: bool = False


class Member(NamedTuple):
    """A parameter's place in its bucket: elements `start` to `start + parameter.numel()`.

    Attributes:
        name: in this rank's stage.
        num_uses: how many modules have it; each adds to its gradient in every backward pass.
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

    n is a multiple of the data-parallel size.
    """

    treatment: Treatment
    members: tuple[Member, ...]
    weights: Tensor
    gradients: Tensor


def flatten(
    stage: Stage, mesh: Mesh, gradient_dtype: torch.dtype = torch.float32, max_elements: int = MAX_BUCKET_ELEMENTS
) -> Iterator[Bucket]:
    """Move the parameters of `stage` into buckets, of which they become views, one bucket at a time."""
    treated = [
        (treatment_of(stage, name, parameter, mesh), name, parameter) for name, parameter in stage.named_parameters()
    ]
    treated.sort(key=lambda one: one[0])  # stable: model order inside a treatment
    uses = _num_uses(stage)
    for treatment, members in groupby(treated, key=lambda one: one[0]):
        for run in _runs(((name, parameter) for _, name, parameter in members), max_elements):
            yield _bucket(treatment, run, uses, gradient_dtype, mesh.data.size)


def treatment_of(stage: Stage, name: str, parameter: nn.Parameter, mesh: Mesh) -> Treatment:
    placement = stage.placements[name]
    held_once = placement.split_dim is not None or mesh.tensor.rank == 0
    has_copy = stage.chunks[0].spec.tied_embeddings and mesh.embedding.size > 1
    return Treatment(
        decays=parameter.dim() > 1,
        counted=held_once and not placement.is_copy,
        partial=placement.partial_gradient,
        tied=has_copy and placement.name == TIED_EMBEDDING,
    )


def _num_uses(stage: Stage) -> dict[int, int]:
    """By the parameter's id: in how many places of the stage it stands."""
    uses: dict[int, int] = {}
    for chunk in stage.chunks:
        for _, parameter in chunk.named_parameters(remove_duplicate=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    return uses


def _runs(named: Iterable[tuple[str, nn.Parameter]], max_elements: int) -> Iterator[list[tuple[str, nn.Parameter]]]:
    """Neighbours that together stay below the limit; a parameter above it is alone."""
    run: list[tuple[str, nn.Parameter]] = []
    length = 0
    for name, parameter in named:
        if run and length + parameter.numel() > max_elements:
            yield run
            run, length = [], 0
        run.append((name, parameter))
        length += parameter.numel()
    yield run


def _bucket(
    treatment: Treatment,
    named: list[tuple[str, nn.Parameter]],
    uses: dict[int, int],
    gradient_dtype: torch.dtype,
    num_shards: int,
) -> Bucket:
    members, used = list[Member](), 0
    for name, parameter in named:
        members.append(Member(name, parameter, used, uses[id(parameter)]))
        used += parameter.numel()
    multiple = ALIGNMENT * num_shards
    length = -(-used // multiple) * multiple
    first = named[0][1]
    weights = torch.zeros(length, dtype=first.dtype, device=first.device)
    for member in members:
        member.of(weights).copy_(member.parameter.detach())
        member.parameter.data = member.of(weights)
    return Bucket(treatment, tuple(members), weights, weights.new_zeros(length, dtype=gradient_dtype))
