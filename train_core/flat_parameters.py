"""All parameters of a rank in a few flat buckets, each with an fp32 gradient of the same length.

Parameters that are treated alike share buckets: weight decay or none, counted in the global norm or not, gradient
complete or a summand. So every later pass over them is one operation or one collective on a bucket, never a loop over
parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor, nn

from train_core.main_gradient import attach
from train_core.mesh import Mesh
from train_core.parallelize import Placement, Stage

ALIGNMENT = 64  # elements; keeps every shard on a boundary that vector units and NCCL like


class Treatment(NamedTuple):
    """What the parameters of a bucket have in common.

    Attributes:
        decays: weight decay applies (matrices; not biases and norms).
        counted: this rank counts them in the global norm; of several ranks that hold the same values one does.
        partial: gradients are to be summed over the tensor axis.
    """

    decays: bool
    counted: bool
    partial: bool


@dataclass(frozen=True)
class Bucket:
    """Weights (n) in the compute precision, gradients (n) in fp32; n is a multiple of the data-parallel size."""

    treatment: Treatment
    weights: Tensor
    gradients: Tensor


def flatten(stage: Stage, mesh: Mesh) -> list[Bucket]:
    """Move the parameters of `stage` into buckets; they become views, and accumulate their gradients there."""
    named = [
        (_treatment(parameter, stage.placements[name], mesh), parameter) for name, parameter in stage.named_parameters()
    ]
    named.sort(key=lambda pair: pair[0])  # stable: model order inside a bucket
    return [
        _bucket(treatment, [parameter for _, parameter in members], mesh.data.size)
        for treatment, members in groupby(named, key=lambda pair: pair[0])
    ]


def _treatment(parameter: nn.Parameter, placement: Placement, mesh: Mesh) -> Treatment:
    held_once = placement.split_dim is not None or mesh.tensor.rank == 0
    return Treatment(
        decays=parameter.dim() > 1,
        counted=held_once and not placement.is_copy,
        partial=placement.partial_gradient,
    )


def _bucket(treatment: Treatment, parameters: list[nn.Parameter], num_shards: int) -> Bucket:
    used = sum(parameter.numel() for parameter in parameters)
    multiple = ALIGNMENT * num_shards
    length = -(-used // multiple) * multiple
    first = parameters[0]
    weights = torch.zeros(length, dtype=first.dtype, device=first.device)
    gradients = torch.zeros(length, dtype=torch.float32, device=first.device)
    offset = 0
    for parameter in parameters:
        part = slice(offset, offset + parameter.numel())
        weights[part].copy_(parameter.detach().flatten())
        parameter.data = weights[part].view(parameter.shape)
        attach(parameter, gradients[part].view(parameter.shape))
        offset = part.stop
    return Bucket(treatment, weights, gradients)
