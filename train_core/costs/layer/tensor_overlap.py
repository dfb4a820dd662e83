"""Tensor-parallel collectives that run in pieces beside the very products whose operands or results they move.

Forward, the gather of an input runs beside the product that takes it, and the scatter of a result beside the product
that makes it. Backward, gathers run beside the products for input gradients, and scatters beside those for weight
gradients. Sources: Transformer Engine's user buffers; torch's fused `all_gather_matmul` and `matmul_reduce_scatter`.
"""

from __future__ import annotations

import numpy as np

from train_core.costs.layer.shard import FULL, SELECTIVE, Shard, paired_products_of, tokens_of
from train_core.costs.primitives.collectives import shown_seconds
from train_core.costs.primitives.kernels import matmul_seconds
from train_core.costs.primitives.narrow import recipe_of
from train_core.costs.setting import Floats, Setting


def runs_beside_products(setting: Setting, shard: Shard) -> bool:
    """True if collectives of any plan run beside products: with sequence parallelism, on a GPU, if the trainer can."""
    can = setting.implementation.tensor_overlap > 0 and setting.cluster.device.kind == "gpu"
    return can and bool(np.any(shard.sequence_parallel))


def pipelined_seconds(
    setting: Setting, shard: Shard, gather: Floats, scatter: Floats, weight_gradients: list[Floats]
) -> tuple[Floats, Floats]:
    """Return the seconds of a layer's collectives that show, forward and backward with the repeated forward.

    Args:
        gather, scatter: seconds of one of either, alone.
        weight_gradients: of the two products that are split by columns.
    """
    tokens, recipe = tokens_of(setting, shard), recipe_of(setting)
    sizes = paired_products_of(setting, shard)
    forward: Floats = np.asarray(0.0)
    backward: Floats = np.asarray(0.0)
    for index, (n, k) in enumerate(sizes):
        collective = gather if index % 2 == 0 else scatter
        forward = forward + _beside(setting, collective, matmul_seconds(setting, tokens, n, k, recipe=recipe))
        backward = backward + _beside(setting, gather, matmul_seconds(setting, tokens, k, n, recipe=recipe))
    for gradient in weight_gradients:
        backward = backward + _beside(setting, scatter, gradient)
    return forward, backward + np.where(shard.recompute == FULL, forward, 0.0) + _gathered_again(setting, shard, gather)


def _gathered_again(setting: Setting, shard: Shard, gather: Floats) -> Floats | float:
    """Gathers of the two products that a selection of operators makes again; what was scattered it keeps."""
    if not setting.implementation.selective_operators:
        return 0.0
    return np.where(shard.recompute == SELECTIVE, 2.0 * setting.own_scale.shown * gather, 0.0)


def _beside(setting: Setting, comm: Floats, product: Floats) -> Floats:
    """Seconds that show of a collective in pieces beside its product."""
    return shown_seconds(setting, comm, product, setting.implementation.tensor_overlap)
