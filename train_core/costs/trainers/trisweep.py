"""This project's own trainer."""

from __future__ import annotations

from train_core.costs.trainers.implementation import Implementation

TRISWEEP = Implementation(
    name="trisweep",
    flash_attention=True,
    attention_rate=1.0,
    attention_since_hopper=1.0,
    memory_traffic=1.0,
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
    kept_outputs="whole",
    scattered_transfers=False,
    context_ring=True,
    overlaps_weight_gradient=True,
    tensor_overlap=0.0,
    groups_experts=False,
    pads_experts=False,
    defers_experts=False,
    experts_overlap=0.0,
    keeps_narrow_inputs=False,
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
