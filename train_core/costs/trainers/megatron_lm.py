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


MEGATRON_CORE = MEGATRON_LM.model_copy(
    update={
        "name": "megatron-core",
        "flash_attention": True,
        "memory_traffic": 0.946,
        "dropout": False,
        "tensor_overlap": 1.0,
        "keeps_narrow_inputs": True,
        "gathers_narrow_weights": True,
        **dict.fromkeys(("loss_copies", "split_loss_copies"), 1),  # the softmax is made in place of the fp32 logits
        "rotated_copies": True,
        "data_overlap": 1.0,
        "overlaps_chunk_transfers": True,
        "loss_passes": (3, 1),
        "launch_seconds": 2.66e-5,  # assumed, half of what the hosts and the layers of 2022 take
        "forward_launches": 13,  # norms and biases are fused with what follows them
        "backward_launches": 20,
        "core_launches": 1,
        "sharded_overlap": 1.0,
    }
)
"""Fused attention, and a distributed optimizer whose reduction and gathers run beside computation."""


MEGATRON_DEEPSPEED = MEGATRON_LM.model_copy(
    update={
        "name": "megatron-deepspeed",
        "memory_traffic": 0.873,
        "overlaps_weight_gradient": False,  # megatron/arguments.py turns it off wherever DeepSpeed runs
        "fp16_gradient_bytes": 2,
        "reduced_bytes": 2,
        "kept_outputs": "part",
        "live_parameters": 1_000_000_000,  # DeepSpeed's stage3_max_live_parameters
        "gathered_messages": 4,  # of 12 parameters; smaller ones than 100,000 elements stay whole on every rank
        "scattered_messages": 12,
        "listed_rank_seconds": 8e-6,  # assumed: 2 microseconds to cut a tensor out in Python, 6 to launch its copy
        "copies_shards": True,
        "sharded_overlap": 1.0,
    }
)
"""Megatron-DeepSpeed with DeepSpeed's pipeline and ZeRO-1, as for BLOOM and on Frontier (2022-2023).

ZeRO-3 is that of DeepSpeed until 0.5.0, as in arXiv 2104.04473: each parameter is gathered, and its gradient scattered,
as a list of one tensor a rank. Sources: deepspeed/runtime/zero/partition_parameters.py (`_allgather_param`,
`_reduce_scatter_gradient`), constants.py (`stage3_param_persistence_threshold`, `stage3_prefetch_bucket_size`); torch,
ProcessGroupNCCL.cpp, which copies every tensor of such a list.
"""
