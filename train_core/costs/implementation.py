"""What differs between trainers that carry out the same plan: declared here, switched by name."""

from __future__ import annotations

from conf.schema import Count, Frozen, Name


class Implementation(Frozen):
    """A trainer, as far as the cost of its step differs from another's.

    Attributes:
        flash_attention: one fused kernel that never stores the scores; else two batched products around a softmax.
        dropout: after attention, in it (unfused only), and after the feed-forward layer; keeps one byte of mask each.
        gradient_bytes: of one accumulated gradient (4: fp32 main gradients).
        reduced_bytes: of one gradient element on the wire.
        norm_statistics: values per token that the two norms of a layer keep, in the width of activations.
        log_sum_exp_bytes: kept by flash attention per token and head.
        whole_stage_outputs: a stage keeps its output whole until its backward; else each tensor rank a part, as where
            the output is sent in parts.
        scattered_transfers: each tensor-parallel rank sends a part of the activation to the next stage, which gathers
            it again (arXiv 2104.04473, section 4.1).
        tensor_overlap: share of the tensor-parallel collectives that computation hides.
        hides_second_gather: the gather that sequence parallelism repeats for the weight gradient runs beside the input
            gradient.
        transfers_overlap: share of a transfer between stages that computation hides.
        data_overlap: share of the gradient reduction and weight gathering that the last backward and the next forward
            can hide.
        sharded_overlap: the same of the gathers and reductions of every layer under ZeRO-3.
        rings_use_all_ports: collectives across nodes use the network ports of all members in a node; else one.
        optimizer_bytes_per_parameter: memory traffic of the update, of one updated parameter.
    """

    name: Name
    flash_attention: bool
    dropout: bool
    gradient_bytes: Count
    reduced_bytes: Count
    norm_statistics: int
    log_sum_exp_bytes: int
    whole_stage_outputs: bool
    scattered_transfers: bool
    tensor_overlap: float
    hides_second_gather: bool
    transfers_overlap: float
    data_overlap: float
    sharded_overlap: float
    rings_use_all_ports: bool
    optimizer_bytes_per_parameter: float


TRISWEEP = Implementation(
    name="trisweep",
    flash_attention=True,
    dropout=False,
    gradient_bytes=4,
    reduced_bytes=4,
    norm_statistics=4,
    log_sum_exp_bytes=4,
    whole_stage_outputs=True,
    scattered_transfers=False,
    tensor_overlap=0.0,
    hides_second_gather=False,
    transfers_overlap=0.0,
    data_overlap=0.0,
    sharded_overlap=0.0,
    rings_use_all_ports=True,
    optimizer_bytes_per_parameter=34.0,  # gradient read for the norm and the update 8, state 24, weight 2
)
"""This trainer. Nothing overlaps yet: its reductions wait for the last backward, its transfers for the receiver."""

MEGATRON_LM = TRISWEEP.model_copy(
    update={
        "name": "megatron-lm",
        "flash_attention": False,
        "dropout": True,
        "reduced_bytes": 2,
        "norm_statistics": 0,
        "hides_second_gather": True,
        "whole_stage_outputs": True,
        "scattered_transfers": True,
        "optimizer_bytes_per_parameter": 42.0,  # copies fp16 gradients into fp32 first
    }
)
"""Megatron-LM as of arXiv 2104.04473 and 2205.05198 (2021-2022)."""

MEGATRON_DEEPSPEED = MEGATRON_LM.model_copy(
    update={
        "name": "megatron-deepspeed",
        "gradient_bytes": 2,
        "whole_stage_outputs": False,
        "rings_use_all_ports": False,
        "sharded_overlap": 1.0,
    }
)
"""Megatron-DeepSpeed with DeepSpeed's pipeline and ZeRO-1, as for BLOOM and on Frontier (2022-2023)."""

FSDP = TRISWEEP.model_copy(update={"name": "fsdp", "sharded_overlap": 1.0, "data_overlap": 1.0, "norm_statistics": 0})
"""PyTorch FSDP with flash attention, as in llm-foundry and torchtitan."""

IMPLEMENTATIONS = {one.name: one for one in (TRISWEEP, MEGATRON_LM, MEGATRON_DEEPSPEED, FSDP)}
