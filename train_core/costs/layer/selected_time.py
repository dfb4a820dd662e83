"""Seconds of what torchtitan's selection of operators computes again; what it keeps is counted in `trainer_bytes`."""

from __future__ import annotations

import numpy as np

from train_core.costs.layer.layer_time import between_forward
from train_core.costs.layer.shard import SELECTIVE, Shard, products_of, tokens_of
from train_core.costs.primitives.kernels import matmul_seconds
from train_core.costs.primitives.narrow import recipe_of
from train_core.costs.setting import Floats, Setting


def selected_seconds(setting: Setting, shard: Shard) -> Floats:
    """Computation of a layer's forward pass that is repeated, 0 for plans that do not select.

    Kept are attention's output and those of every second product: queries, values, and the gate or the way up. Keys,
    attention's projection and the other half of a gated way up are made again, with all that lies between. Nothing
    needs the output of the way down, so that compiled layers do not make it again.
    """
    model, tokens, recipe = setting.model, tokens_of(setting, shard), recipe_of(setting)
    keys = model.key_value_size / (model.query_size + 2 * model.key_value_size)
    # Of latent attention, whose products outnumber heads' kinds, half of the ways down and up are taken to be kept.
    attention = (keys, 1.0) if model.latent_attention is None else (0.5, 0.5, 0.5, 1.0)
    again = (*attention, 0.5 if model.gated_mlp else 0.0, 0.0)
    repeated = between_forward(setting, shard)
    # Layers with experts need not have a feed-forward layer beside them.
    for share, (n, k) in zip(again, products_of(setting, shard), strict=False):
        if share:
            repeated = repeated + share * matmul_seconds(setting, tokens, n, k, recipe=recipe)
    return np.where(shard.recompute == SELECTIVE, repeated, 0.0)
