"""The parts that a rank holds whole for a while though ZeRO shares them out: gradients of ZeRO-2, layers of ZeRO-3."""

from __future__ import annotations

import numpy as np

from train_core.bucket_rules import MAX_BUCKET_ELEMENTS
from train_core.costs.setting import Booleans, Integers
from train_core.costs.step.priced_stage import PricedStage

GATHERED_LAYERS = 2  # the layer at work and the next one


def gradient_elements(stage: PricedStage) -> Integers:
    """Gradients on a rank: all of them, or from ZeRO-2 on its share, with those that are whole meanwhile.

    This trainer has two whole buckets, one being added to and one being summed. FSDP adds up whole gradients in a
    pipeline, and scatters them after the last micro-batch. What others hold whole is not known.
    """
    plans, implementation = stage.plans, stage.setting.implementation
    is_passing = (plans.zero_stage == 2) & (plans.num_replicas > 1)
    kept: Integers = np.where(plans.zero_stage >= 2, stage.owned_parameters, stage.parameters)
    if not np.any(is_passing):
        return kept
    if implementation.counted_moments:
        return kept + np.where(is_passing, _two_buckets(stage), 0)
    is_added_up = is_passing & (plans.pipeline_parallel_size > 1) & implementation.shards_masters
    return kept + np.where(is_added_up, stage.parameters, 0)


def _two_buckets(stage: PricedStage) -> Integers:
    """A bucket is taken to be as long as it may be, or as its only matrix if that is longer."""
    model, t, group = stage.setting.model, stage.plans.tensor_parallel_size, stage.group
    columns = max(model.query_size + 2 * model.key_value_size, (2 if model.gated_mlp else 1) * model.ffn_hidden_size)
    of_layer = np.maximum(columns * model.hidden_size // t, MAX_BUCKET_ELEMENTS)
    of_end = np.maximum(model.vocab_size * model.hidden_size // t, of_layer)
    whole: Integers = of_layer + np.where(group.is_first | group.is_last, of_end, of_layer)
    return np.minimum(whole, stage.parameters)


def gathers_ahead(stage: PricedStage) -> Booleans | bool:
    """True where ZeRO-3 gathers the next layer while one is at work, and keeps one that backward is about to use.

    DeepSpeed holds no more than `live_parameters`, and lets go of what is used again only after as many others. With
    layers larger than that nothing is gathered ahead. Source: its documentation of stage3_max_live_parameters and
    stage3_max_reuse_distance, both 10^9 unless stated.
    """
    limit = stage.setting.implementation.live_parameters
    return True if limit is None else stage.work.layer_parameters <= limit


def gathered_bytes(stage: PricedStage) -> Integers:
    """Bytes of weights that ZeRO-3 has gathered, and of as many gradients on their way to their shards.

    Two layers; where the trainer limits them, no more than that, or than the largest matrix if it has more.
    """
    setting, limit = stage.setting, stage.setting.implementation.live_parameters
    layers = GATHERED_LAYERS * stage.work.layer_parameters
    if limit is not None:
        model = setting.model
        largest = (2 if model.gated_mlp else 1) * model.ffn_hidden_size * model.hidden_size
        layers = np.minimum(layers, np.maximum(limit, largest // stage.plans.tensor_parallel_size))
    whole: Integers = layers * (setting.dtype_bytes + setting.gradient_bytes)
    return whole
