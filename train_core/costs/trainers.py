"""Every trainer that plans can be priced for, each chosen by its name and said by what differs from another."""

from __future__ import annotations

from train_core.costs.implementation import Implementation

TRISWEEP = Implementation(
    name="trisweep",
    flash_attention=True,
    attention_rate=1.0,
    attention_since_hopper=1.0,
    memory_traffic=1.0,
    is_eager=True,
    is_compiled=False,
    dropout=False,
    gradient_bytes=4,
    fp16_gradient_bytes=4,
    counted_moments=True,
    shards_masters=True,
    live_parameters=None,
    selective_operators=False,
    keeps_unused_outputs=False,
    loss_copies=1,
    split_loss_copies=1,
    rotated_copies=False,
    reduced_bytes=4,
    fp16_reduced_bytes=4,
    norm_statistics=4,
    log_sum_exp_bytes=4,
    kept_outputs="none",
    scattered_transfers=False,
    context_ring=True,
    overlaps_weight_gradient=True,
    tensor_overlap=0.0,
    groups_experts=False,
    groups_passes=True,
    pads_experts=False,
    defers_experts=False,
    experts_overlap=0.0,
    casts_anew=True,
    keeps_narrow_inputs=False,
    gathers_narrow_operands=False,
    gathers_narrow_weights=False,
    transfers_overlap=0.0,
    overlaps_chunk_transfers=False,
    data_overlap=1.0,
    sharded_overlap=1.0,
    stops_recompute_early=False,  # its own products save their input after they ran
    loss_passes=(3, 1),
    launch_seconds=20e-6,  # assumed: half of what an older host and Megatron's layers take
    collective_call_seconds=60e-6,
    forward_launches=16,  # two norms, four products, core, activation, two additions, moves of heads and biases
    backward_launches=32,
    core_launches=1,
    gathered_messages=1,
    scattered_messages=1,
    listed_rank_seconds=0.0,
    copies_shards=False,
    optimizer_bytes_per_parameter=None,
    whole_gradient_bytes=0.0,
)
"""This trainer. Gradients of a bucket are reduced while backward makes those of the next, and new weights are gathered
beside the next forward pass (train_core/parallel/data_parallel.py; FSDP2 does both). The backward passes of
train_core/parallel/tensor_parallel.py overlap their own collectives. Transfers wait for the receiver."""

MEGATRON_LM = TRISWEEP.model_copy(
    update={
        "name": "megatron-lm",
        "flash_attention": False,
        "memory_traffic": 0.901,
        **dict.fromkeys(("is_eager", "groups_passes", "casts_anew"), False),
        "counted_moments": False,
        "shards_masters": False,
        **dict.fromkeys(("loss_copies", "split_loss_copies"), 2),  # the softmax beside the fp32 logits
        "dropout": True,
        "fp16_reduced_bytes": 2,  # those of bf16 are accumulated and reduced in fp32
        "norm_statistics": 0,
        "scattered_transfers": True,
        "gathers_narrow_operands": True,
        "overlaps_weight_gradient": True,
        **dict.fromkeys(("groups_experts", "pads_experts", "defers_experts"), True),
        "loss_passes": (7, 3),  # megatron/mpu/cross_entropy.py: largest, subtracted, exp, summed, divided
        "launch_seconds": 4.02e-5,
        "collective_call_seconds": 5.19e-5,
        "forward_launches": 17,
        "backward_launches": 34,
        "core_launches": 5,
        **dict.fromkeys(("data_overlap", "sharded_overlap"), 0.0),
        "optimizer_bytes_per_parameter": 42.0,  # copies fp16 gradients into fp32 first
        "whole_gradient_bytes": 23.2,
    }
)
"""Megatron-LM as it was in 2022, before Megatron-Core (arXiv 2205.05198). Source of the overlap:
megatron/core/tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication; that of arXiv 2104.04473 did
not have it yet."""

MEGATRON_DEEPSPEED = MEGATRON_LM.model_copy(
    update={
        "name": "megatron-deepspeed",
        "memory_traffic": 0.878,
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

MEGATRON_CORE = MEGATRON_LM.model_copy(
    update={
        "name": "megatron-core",
        "flash_attention": True,
        "memory_traffic": 0.908,
        "dropout": False,
        "tensor_overlap": 1.0,
        "keeps_narrow_inputs": True,
        "gathers_narrow_weights": True,
        **dict.fromkeys(("loss_copies", "split_loss_copies"), 1),  # the softmax is made in place of the fp32 logits
        "rotated_copies": True,
        "data_overlap": 1.0,
        "overlaps_chunk_transfers": True,
        "loss_passes": (3, 1),
        "launch_seconds": 2.67e-5,  # assumed, half of what the hosts and the layers of 2022 take
        "forward_launches": 13,  # norms and biases are fused with what follows them
        "backward_launches": 20,
        "core_launches": 1,
        "sharded_overlap": 1.0,
    }
)
"""Megatron-Core with Transformer Engine, as NeMo and Megatron-LM run it since 2024: fused attention, and a distributed
optimizer whose reduction and gathers run beside computation."""

FSDP = TRISWEEP.model_copy(
    update={
        "name": "fsdp",
        "counted_moments": False,
        "kept_outputs": "whole",  # torch.distributed.pipelining, as in torchtitan
        "loss_copies": 0,  # llm-foundry's fused cross entropy
        "overlaps_weight_gradient": False,
        **dict.fromkeys(("is_eager", "groups_passes", "casts_anew"), False),
        **dict.fromkeys(("groups_experts", "pads_experts", "defers_experts"), True),
        "attention_rate": 0.685,
        "attention_since_hopper": 0.555,
        "memory_traffic": 1.8,
        "stops_recompute_early": True,
        "norm_statistics": 0,
        "keeps_narrow_inputs": True,
        "gathers_narrow_operands": True,
        "optimizer_bytes_per_parameter": 34.0,  # gradient read for the norm and the update 8, state 24, weight 2
    }
)
"""PyTorch FSDP, eager, with the flash attention of 2023, as in llm-foundry. Rates and traffic are
fitted with all other constants (benchmarks/fitting), above all on its tables, so that `memory_traffic` holds what is
eager."""

TORCHTITAN = FSDP.model_copy(
    update={
        "name": "torchtitan",
        "attention_rate": 1.0,
        "memory_traffic": 1.03,
        "context_ring": False,
        "keeps_narrow_inputs": False,
        "gathers_narrow_weights": True,
        "selective_operators": True,
        "copies_shards": True,
        "loss_copies": 3,  # the logits, their log-softmax and its gradient, none of which is compiled
        "split_loss_copies": 4,  # torch's loss_parallel shifts the logits in a pass of its own
    }
)
"""Layers are compiled, so that what lies between matrix products is fused; but for rotary positions, which are complex
numbers in fp32 that the compiler leaves alone. `memory_traffic` is fitted with all others (benchmarks/fitting)."""
TORCHTITAN_EAGER = TORCHTITAN.model_copy(update={"memory_traffic": FSDP.memory_traffic, "keeps_unused_outputs": True})
"""The same with `compile.enable = false`, which is torchtitan's default; its traffic is that of any eager FSDP."""
TORCHTITAN_COMPILED_LOSS = TORCHTITAN.model_copy(update={"loss_copies": 1})
"""Since April 2025 what compiles the layers compiles the loss too (torchtitan's pull request 1033). That one copy in
fp32 is left is fitted on the two rows of its H200 page, which are no test of it."""

DEEPSPEED = FSDP.model_copy(
    update={
        "name": "deepspeed",
        "shards_masters": False,
        "live_parameters": 1_000_000_000,  # stage3_max_live_parameters
        "loss_copies": 3,  # the loss is that of torch, without fusion
    }
)
"""DeepSpeed's ZeRO without Megatron, as Hugging Face's trainers run it: eager layers; ZeRO-3 gathers and reduces beside
computation, like FSDP."""

IMPLEMENTATIONS = {
    trainer.name: trainer
    for trainer in (TRISWEEP, MEGATRON_LM, MEGATRON_DEEPSPEED, MEGATRON_CORE, FSDP, TORCHTITAN, DEEPSPEED)
}
