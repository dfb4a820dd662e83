"""Seconds that the host needs to launch the kernels of one layer: where kernels are small, devices wait for it.

The host runs ahead of the device while it can, so that a pass through a layer takes the larger of what the device needs
and what Python, the framework and the driver need to launch it.
"""

from __future__ import annotations

import numpy as np

from train_core.costs.layer.shard import FULL, SELECTIVE, Shard
from train_core.costs.setting import Booleans, Floats, Setting

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


def launch_seconds(setting: Setting, shard: Shard) -> tuple[Floats | float, Floats | float]:
    """Seconds of the host for a layer's forward pass, and for its backward pass with what that repeats."""
    trainer = setting.implementation
    if setting.cluster.device.kind == "cpu" or trainer.launch_seconds == 0.0:
        return 0.0, 0.0  # a CPU rank computes where it would launch, which is in what its kernels take
    slower = setting.cluster.efficiency.launch
    one, call = trainer.launch_seconds * slower, trainer.collective_call_seconds * slower
    more = np.where(has_fused_softmax(setting, shard), 0, SOFTMAX_LAUNCHES)
    reduces = np.where(shard.tensor_parallel_size > 1, TENSOR_COLLECTIVES * call, 0.0)
    forward = (trainer.forward_launches + more) * one + reduces
    backward = (trainer.backward_launches + more) * one + reduces
    core = (trainer.core_launches + more) * one
    around = REPEATED_SECONDS * slower
    selected = np.where(shard.recompute == SELECTIVE, core + around, 0.0)
    again = np.where(shard.recompute == FULL, forward + around, selected)
    return forward, backward + again


def has_fused_softmax(setting: Setting, shard: Shard) -> Booleans:
    """True where one kernel computes the softmax, or flash attention the whole core."""
    matrices = setting.model.num_attention_heads // shard.tensor_parallel_size * shard.micro_batch_size
    is_fused: Booleans = (matrices % SOFTMAX_MULTIPLE == 0) | setting.implementation.flash_attention
    return is_fused


def waiting_seconds(host: Floats | float, device: Floats) -> Floats:
    """Seconds that a device waits in a pass of which it would take `device` seconds, its collectives included."""
    return np.maximum(host - device, 0.0)
