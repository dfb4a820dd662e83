"""Every trainer that plans can be priced for, each chosen by its name."""

from __future__ import annotations

from train_core.costs.trainers.implementation import Implementation

TRISWEEP = Implementation(
    name="trisweep",
    flash_attention=True,
    attention_rate=1.0,
    memory_traffic=1.0,
    dropout=False,
    gradient_bytes=4,
    fp16_gradient_bytes=4,
    counted_moments=True,
    reduced_bytes=4,
    norm_statistics=4,
    log_sum_exp_bytes=4,
    whole_stage_outputs=True,
    scattered_transfers=False,
    overlaps_weight_gradient=True,
    transfers_overlap=0.0,
    data_overlap=0.0,
    sharded_overlap=0.0,
    sharded_link=1.0,
    rings_use_all_ports=True,
    optimizer_bytes_per_parameter=34.0,  # gradient read for the norm and the update 8, state 24, weight 2
)
"""This trainer. Gradients are reduced after the last backward, and transfers wait for the receiver; the only overlap is
that inside the backward passes of train_core/parallel/tensor_parallel.py."""

MEGATRON_LM = TRISWEEP.model_copy(
    update={
        "name": "megatron-lm",
        "flash_attention": False,
        "counted_moments": False,
        "dropout": True,
        "reduced_bytes": 2,
        "norm_statistics": 0,
        "scattered_transfers": True,
        "overlaps_weight_gradient": True,
        "optimizer_bytes_per_parameter": 42.0,  # copies fp16 gradients into fp32 first
    }
)
"""Megatron-LM as of arXiv 2104.04473 and 2205.05198. Source of the overlap: megatron/core/tensor_parallel/layers.py,
LinearWithGradAccumulationAndAsyncCommunication."""

MEGATRON_DEEPSPEED = MEGATRON_LM.model_copy(
    update={
        "name": "megatron-deepspeed",
        "overlaps_weight_gradient": False,
        "fp16_gradient_bytes": 2,
        "whole_stage_outputs": False,
        "rings_use_all_ports": False,
        "sharded_overlap": 0.65,
        "sharded_link": 0.9,
    }
)
"""Megatron-DeepSpeed with DeepSpeed's pipeline and ZeRO-1, as for BLOOM and on Frontier (2022-2023). `sharded_overlap`
and `sharded_link` are fitted on the six ZeRO-3 rows of arXiv 2104.04473, table 2, which are no test of them."""

FSDP = TRISWEEP.model_copy(
    update={
        "name": "fsdp",
        "counted_moments": False,
        "overlaps_weight_gradient": False,
        "attention_rate": 0.6,
        "memory_traffic": 2.0,
        "sharded_overlap": 1.0,
        "data_overlap": 1.0,
        "norm_statistics": 0,
    }
)
"""PyTorch FSDP, eager, with the flash attention of 2023, as in llm-foundry. The two rates are fitted on its tables."""

IMPLEMENTATIONS = {trainer.name: trainer for trainer in (TRISWEEP, MEGATRON_LM, MEGATRON_DEEPSPEED, FSDP)}
