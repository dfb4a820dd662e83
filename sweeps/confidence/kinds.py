"""What kind of plan it is, as far as the errors of predictions differ between kinds."""

from __future__ import annotations

from typing import Literal, get_args

from conf.setup import Setup
from train_core.costs.counts.flops import layer_forward_flops

Kind = Literal["experts", "narrow products", "context parallel", "small layers", "dense"]
KINDS: tuple[Kind, ...] = get_args(Kind)

SMALL_LAYER_FLOPS = 2e11
"""A device of today computes the forward pass of a smaller layer in the time that its kernels take to be launched."""


def kind_of(setup: Setup) -> Kind:
    """The kind that decides most about the error, where a plan is of several."""
    if setup.model.experts is not None:
        return "experts"
    if setup.precision.matmul_recipe is not None:
        return "narrow products"
    if setup.parallel.context_parallel_size > 1:
        return "context parallel"
    return "small layers" if layer_flops_per_device(setup) < SMALL_LAYER_FLOPS else "dense"


def layer_flops_per_device(setup: Setup) -> float:
    """FLOPs of one layer's forward pass of one micro-batch on one device."""
    parallel = setup.parallel
    ranks = parallel.tensor_parallel_size * parallel.context_parallel_size
    return layer_forward_flops(setup.model, setup.batch.micro_batch_size) / ranks
