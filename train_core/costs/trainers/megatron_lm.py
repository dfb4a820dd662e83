"""Megatron-LM as it was in 2022, before Megatron-Core."""

from __future__ import annotations

from train_core.costs.trainers.trisweep import TRISWEEP

MEGATRON_LM = TRISWEEP.model_copy(
    update={
        "name": "megatron-lm",
        "flash_attention": False,
        "memory_traffic": 0.895,
        "counted_moments": False,
        "shards_masters": False,
        **dict.fromkeys(("loss_copies", "split_loss_copies"), 2),  # the softmax beside the fp32 logits
        "kept_outputs": "none",
        "dropout": True,
        "fp16_reduced_bytes": 2,  # those of bf16 are accumulated and reduced in fp32
        "norm_statistics": 0,
        "scattered_transfers": True,
        "overlaps_weight_gradient": True,
        **dict.fromkeys(("groups_experts", "pads_experts", "defers_experts"), True),
        "loss_passes": (7, 3),  # megatron/mpu/cross_entropy.py: largest, subtracted, exp, summed, divided
        "launch_seconds": 4.03e-5,
        "collective_call_seconds": 5.16e-5,
        "forward_launches": 17,
        "backward_launches": 34,
        "core_launches": 5,
        **dict.fromkeys(("data_overlap", "sharded_overlap"), 0.0),
        "optimizer_bytes_per_parameter": 42.0,  # copies fp16 gradients into fp32 first
        "whole_gradient_bytes": 18.3,
    }
)
"""Megatron-LM as of arXiv 2205.05198. Source of the overlap: megatron/core/tensor_parallel/layers.py,
LinearWithGradAccumulationAndAsyncCommunication; that of arXiv 2104.04473 did not have it yet."""
