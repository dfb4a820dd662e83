"""Time and memory of one transformer layer, for one micro-batch on one rank.

Everything here depends on the choices of a `Shard` only, so that a search prices each combination once.

The host runs ahead of the device while it can, so that a pass through a layer takes the larger of what the device needs
and what Python, the framework and the driver need to launch it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costs.layer.context import buffer_bytes, core_bytes, core_seconds
from costs.layer.layer_bytes import deferred_bytes, gradient_bytes, kept_bytes, outputs_bytes
from costs.layer.layer_time import (
    largest_exchanges,
    projections_forward,
    projections_input_gradient,
    projections_repeated,
    repeated_seconds,
    selected_seconds,
    tensor_seconds,
    weight_gradients_of,
)
from costs.layer.shard import (
    NONE,
    Shard,
    hidden_bytes_of,
    num_gathered,
    products_of,
)
from costs.setting import Booleans, Floats, InColumns, Integers, Setting, repeats


@dataclass(frozen=True, slots=True)
class LayerCosts(InColumns):
    """Seconds of one micro-batch in one layer, and bytes it keeps from forward to backward.

    Attributes:
        forward_seconds: forward computation without collectives; so are the next two.
        input_gradient_seconds: backward to the input, recomputation included.
        weight_gradient_seconds: backward to the weights, which zero-bubble schedules defer.
        tensor_forward_seconds: collectives of tensor and context ranks that computation does not hide.
        tensor_backward_seconds: the same, those of the repeated forward included.
        waiting_seconds: of all computation, what the device waits for its host.
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
    waiting_seconds: Floats
    kept_bytes: Integers
    deferred_bytes: Integers
    working_bytes: Integers
    gathered_bytes: Integers


def layer_costs(setting: Setting, shard: Shard) -> LayerCosts:
    kept = kept_bytes(setting, shard, shard.recompute)
    whole = kept_bytes(setting, shard, np.full_like(shard.recompute, NONE))
    one_at_a_time = np.where(repeats(setting, shard.recompute, "outputs"), outputs_bytes(setting, shard), 0)
    return LayerCosts(
        *_seconds(setting, shard),
        kept_bytes=kept,
        deferred_bytes=deferred_bytes(setting, shard) - kept,
        # A layer that is at work has made again all that it would have kept, but for what is a part of what works.
        working_bytes=whole - kept - one_at_a_time + fullest_bytes(setting, shard),
        gathered_bytes=np.where(shard.sequence_parallel, hidden_bytes_of(setting, shard), 0),
    )


def fullest_bytes(setting: Setting, shard: Shard) -> Integers:
    """Bytes that the fullest moment of a layer's backward holds beside what it keeps and makes again."""
    gradients = gradient_bytes(setting, shard)
    if setting.implementation.counted_moments:
        return np.maximum(gradients, core_bytes(setting, shard))
    return gradients + buffer_bytes(setting, shard)


def _seconds(setting: Setting, shard: Shard) -> tuple[Floats, Floats, Floats, Floats, Floats, Floats]:
    """The first six columns of `LayerCosts`; what a device waits for its host counts as computation."""
    projections, core = projections_forward(setting, shard), core_seconds(setting, shard)
    weight_gradients = weight_gradients_of(setting, shard)
    # The products are in pairs, split by columns and then by rows: every second one from the last but one backward.
    # Only the products split by columns reduce their input's gradient, so only their weight gradients hide that.
    tensor_forward, tensor_backward = tensor_seconds(setting, shard, weight_gradients[-2::-2][: num_gathered(setting)])
    sent_forward, sent_backward = tensor_forward + core.exchange_forward, tensor_backward + core.exchange_backward
    forward, weights = projections + core.forward, np.asarray(sum(weight_gradients))
    is_whole = repeats(setting, shard.recompute, "layer")
    repeated = np.where(is_whole, projections_repeated(setting, shard, projections), 0.0)
    repeated = repeated + core.repeated + repeated_seconds(setting, shard)
    if setting.implementation.selective_operators:
        repeated = repeated + selected_seconds(setting, shard)
    to_input = projections_input_gradient(setting, shard) + core.backward + repeated
    host_forward, host_input, host_weights = launch_seconds(setting, shard)
    waits = waiting_seconds(setting, host_forward, forward + sent_forward)
    early, late = backward_waits(setting, host_input, host_weights, to_input + sent_backward, weights)
    return forward + waits, to_input + early, weights + late, sent_forward, sent_backward, waits + early + late


TENSOR_COLLECTIVES = 2  # of a layer, each way; arXiv 1909.08053, section 3
SOFTMAX_MULTIPLE = 4
"""The fused softmax of Megatron takes so many matrices of scores at a time. Source: megatron/fused_kernels,
scaled_upper_triang_masked_softmax; megatron/model/fused_softmax.py, is_kernel_available."""
SOFTMAX_LAUNCHES = 7
"""More launches, each way, of a softmax that is not fused: two changes of type, scaling, making the mask and applying
it, in place of one kernel. Source: megatron/model/fused_softmax.py, forward_torch_softmax."""

REPEATED_SECONDS = 4e-4
"""Of the host around a part that backward repeats: random states are saved and set, and autograd runs within autograd.
Source: pytorch/torchtitan, pull request 2380, where a developer of torch's measured 350 microseconds of a checkpointed
part, and 30 to 50 more of its random states."""


def launch_seconds(setting: Setting, shard: Shard) -> tuple[Floats | float, Floats | float, float]:
    """Seconds of the host for a layer's forward pass, for its backward pass to the input with what that repeats, and
    for the products of its weights' gradients."""
    trainer = setting.implementation
    if setting.cluster.device.kind == "cpu" or trainer.launch_seconds == 0.0 or trainer.graphs_layers:
        return 0.0, 0.0, 0.0  # a CPU rank computes where it would launch, which is in what its kernels take
    slower = setting.cluster.efficiency.launch
    one, call = trainer.launch_seconds * slower, trainer.collective_call_seconds * slower
    more = np.where(has_fused_softmax(setting, shard), 0, SOFTMAX_LAUNCHES)
    is_split = shard.tensor_parallel_size > 1
    calls = [np.where(is_split, (TENSOR_COLLECTIVES + number) * call, 0.0) for number in largest_exchanges(setting)]
    forward = (trainer.forward_launches + more) * one + calls[0]
    products = len(products_of(setting, shard))
    backward = (trainer.backward_launches - products + more) * one + calls[1]
    core = (trainer.core_launches + more) * one
    around = REPEATED_SECONDS * slower
    selected = np.where(repeats(setting, shard.recompute, "core", "operators"), core + around, 0.0)
    # Full recomputation launches a whole forward pass again, selective the attention core alone.
    again = np.where(repeats(setting, shard.recompute, "layer"), forward + around, selected)
    return forward, backward + again, products * one


def has_fused_softmax(setting: Setting, shard: Shard) -> Booleans:
    """True where one kernel computes the softmax, or flash attention the whole core."""
    matrices = setting.model.num_attention_heads // shard.tensor_parallel_size * shard.micro_batch_size
    return (matrices % SOFTMAX_MULTIPLE == 0) | setting.implementation.flash_attention


def waiting_seconds(setting: Setting, host: Floats | float, device: Floats) -> Floats:
    """Seconds that a device waits in a pass of which it would take `device` seconds, its collectives included."""
    if setting.implementation.blocks_launches:
        return host + np.zeros_like(device)
    return np.maximum(host - device, 0.0)


def backward_waits(
    setting: Setting, host_input: Floats | float, host_weights: Floats | float, to_input: Floats, weights: Floats
) -> tuple[Floats, Floats]:
    """Seconds that a device waits in a backward pass to the input, and more (or less) with weights' gradients after it.

    A zero-bubble schedule fills waits with these gradients, which have launches of their own: a wait that came with the
    inputs' alone would grow where products of weights became faster, and a faster device be slower.

    Args:
        to_input: seconds of the device, collectives included.
    """
    early = waiting_seconds(setting, host_input, to_input)
    return early, waiting_seconds(setting, host_input + host_weights, to_input + weights) - early
