"""Megatron-DeepSpeed of 2022 and 2023."""

from __future__ import annotations

from train_core.costs.trainers.megatron_lm import MEGATRON_LM

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
