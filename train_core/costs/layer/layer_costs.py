"""Time and memory of one transformer layer, for one micro-batch on one rank.

Everything here depends on the choices of a `Shard` only, so that a search prices each combination once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from train_core.costs.layer.context import buffer_bytes, core_bytes, core_seconds
from train_core.costs.layer.host_time import launch_seconds, waiting_seconds
from train_core.costs.layer.layer_bytes import deferred_bytes, gradient_bytes, kept_bytes
from train_core.costs.layer.layer_time import (
    projections_forward,
    projections_input_gradient,
    projections_repeated,
    tensor_seconds,
    weight_gradients_of,
)
from train_core.costs.layer.pointwise import repeated_seconds
from train_core.costs.layer.selected_time import selected_seconds
from train_core.costs.layer.shard import FULL, NONE, POINTWISE, Shard, hidden_bytes_of, num_gathered
from train_core.costs.setting import Floats, Integers, Setting


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Columns, (n,): seconds of one micro-batch in one layer, and bytes it keeps from forward to backward.

    Attributes:
        forward_seconds: forward computation without collectives; so are the next two.
        input_gradient_seconds: backward to the input, recomputation included.
        weight_gradient_seconds: backward to the weights, which zero-bubble schedules defer.
        tensor_forward_seconds: collectives of tensor and context ranks that computation does not hide.
        tensor_backward_seconds: the same, those of the repeated forward included.
        kept_bytes: held for every micro-batch in flight.
        deferred_bytes: bytes held on top (or less) for a micro-batch of which only weight gradients are to come.
        working_bytes: further bytes held while one layer runs backward, without the gradient of its output.
        gathered_bytes: the whole sequence that sequence parallelism gathers meanwhile.
    """

    forward_seconds: Floats
    input_gradient_seconds: Floats
    weight_gradient_seconds: Floats
    tensor_forward_seconds: Floats
    tensor_backward_seconds: Floats
    kept_bytes: Integers
    deferred_bytes: Integers
    working_bytes: Integers
    gathered_bytes: Integers

    def rows(self, selection: Integers) -> LayerCosts:
        """The entries at `selection`, in that order."""
        return LayerCosts(*(getattr(self, name)[selection] for name in self.__slots__))


def layer_costs(setting: Setting, shard: Shard) -> LayerCosts:
    kept = kept_bytes(setting, shard, shard.recompute)
    whole = kept_bytes(setting, shard, np.full_like(shard.recompute, NONE))
    working = gradient_bytes(setting, shard)
    if setting.implementation.counted_moments:
        working = np.maximum(working, core_bytes(setting, shard))
    else:
        working = working + buffer_bytes(setting, shard)
    return LayerCosts(
        *_seconds(setting, shard),
        kept_bytes=kept,
        deferred_bytes=deferred_bytes(setting, shard) - kept,
        # What pointwise recomputation makes again is not all there at once, but a part of what works.
        working_bytes=np.where(shard.recompute == POINTWISE, 0, whole - kept) + working,
        gathered_bytes=np.where(shard.sequence_parallel, hidden_bytes_of(setting, shard), 0),
    )


def _seconds(setting: Setting, shard: Shard) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """The first five columns of `LayerCosts`; what a device waits for its host counts as computation."""
    projections, core = projections_forward(setting, shard), core_seconds(setting, shard)
    weight_gradients = weight_gradients_of(setting, shard)
    # Only the products split by columns reduce their input's gradient, so only their weight gradients hide that.
    tensor_forward, tensor_backward = tensor_seconds(setting, shard, weight_gradients[-2::-2][: num_gathered(setting)])
    sent_forward, sent_backward = tensor_forward + core.exchange_forward, tensor_backward + core.exchange_backward
    forward, weights = projections + core.forward, np.asarray(sum(weight_gradients))
    repeated = np.where(shard.recompute == FULL, projections_repeated(setting, shard, projections), 0.0)
    repeated = repeated + core.repeated + repeated_seconds(setting, shard)
    if setting.implementation.selective_operators:
        repeated = repeated + selected_seconds(setting, shard)
    to_input = projections_input_gradient(setting, shard) + core.backward + repeated
    host_forward, host_backward = launch_seconds(setting, shard)
    forward = forward + waiting_seconds(host_forward, forward + sent_forward)
    to_input = to_input + waiting_seconds(host_backward, to_input + weights + sent_backward)
    return forward, to_input, weights, sent_forward, sent_backward
