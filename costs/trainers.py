"""Every trainer that plans can be priced for, by its name; `trainers.yaml` says what differs from another."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from conf.folders import package_content
from conf.types.schema import Count, Frozen, Name


class Implementation(Frozen):
    """A trainer, as far as the cost of its step differs from another's; the defaults are this package's own.

    Attributes:
        flash_attention: one fused kernel that never stores the scores; else a softmax between two batched products.
        attention_rate: rate of that kernel relative to the best one for the device.
        attention_since_hopper: further factor on it on chips since Hopper, for kernels that are older than these chips
            and do not use their asynchronous matrix units.
        memory_traffic: bytes that norms, activations and residuals move, relative to kernels fused as far as possible.
        is_eager: a gated activation, the turning of heads by their positions, and dropout are several operations, each
            with a pass of its own over memory, which a compiler or kernels of a trainer's own would join.
        is_compiled: torch's compiler joins them, but for those of experts; `in_training` says so.
        dropout: after attention, in it (unfused only), and after the feed-forward layer; keeps one byte of mask each.
            Trainers that drop values only if a training asks for it have it off here; `in_training` turns it on.
        gradient_bytes: of one accumulated gradient (4: fp32 main gradients).
        fp16_gradient_bytes: the same where weights are fp16, since some trainers accumulate fp16 gradients as they are.
        counted_moments: which moment of a step is the fullest is known, from rehearsals of the trainer, which makes a
            weight's gradient in the width of activations before adding it to what is accumulated. Otherwise all that is
            held at some moment of a layer's backward and of the loss is taken to be held at once.
        shards_masters: ZeRO-3 keeps no weights but the optimizer's fp32 shards, and gathers them layer by layer in the
            width of activations, as FSDP does.
        live_parameters: how many gathered parameters ZeRO-3 lets a rank hold; null: two layers, whatever their size.
        selective_operators: selective recomputation keeps attention's output and every second matrix product's
            (torchtitan), instead of all but the attention core.
        keeps_unused_outputs: of these also what backward does not need, since nothing looks at a layer as a whole.
        loss_copies: copies of the logits in fp32 that the loss holds at once; 0: it makes the gradient out of the
            logits as they are.
        split_loss_copies: the same where tensor ranks share out the vocabulary.
        rotated_copies: queries and keys are kept as they were turned by their positions, and what they were made from
            too, since values stay a part of it.
        reduced_bytes: of one gradient element on the wire.
        fp16_reduced_bytes: the same where weights are fp16.
        norm_statistics: values per token that the two norms of a layer keep, in the width of activations.
        log_sum_exp_bytes: kept by flash attention per token and head.
        kept_outputs: what every tensor rank keeps of a stage's output until its backward: the whole; a part, as in
            trainers that send the output in parts; or none, since the next stage has it
            (`deallocate_pipeline_outputs`; source: arXiv 2205.05198).
        scattered_transfers: each tensor-parallel rank sends a part of the activation to the next stage, which gathers
            it again (arXiv 2104.04473, section 4.1).
        context_ring: context ranks pass keys and values on beside the blocks of the core, as TransformerEngine does;
            else they gather those of all query heads at once, and merge outputs in fp32, as torch does.
        overlaps_weight_gradient: tensor-parallel collectives of backward run beside the gradients' products: the
            reduction of the input gradient beside the weight gradient of the same product, and the gather that sequence
            parallelism repeats. On a CPU nothing overlaps, because the ranks' own cores carry out the collectives.
        tensor_overlap: share of the tensor-parallel collectives of sequence parallelism that is cut into pieces, which
            run beside the products whose operands and results they move.
        groups_experts: one kernel makes the products of all experts of a rank; else they follow one another.
        groups_passes: where torch has such a kernel, which is for bf16 on NVIDIA's chips since Hopper, it makes the
            products forward and to the input; those of weights' gradients follow one another.
        pads_experts: where there is a capacity, every expert multiplies as many rows as it has room for; else those
            that came and found room.
        defers_experts: a zero-bubble schedule puts off the weight gradients of experts, as it does all others.
        unfused_expert_biases: biases of experts are added, and what enters their activation is capped, in passes of
            their own over memory, as in gpt-oss.
        experts_overlap: share of the exchanges around experts that runs beside the computation of another micro-batch.
        casts_anew: both operands of every narrow product are cast anew, operation by operation unless that is compiled,
            and tensor ranks tell each other the largest values that one scale of a tensor follows from; other trainers
            keep what is cast, and cast weights once.
        keeps_narrow_inputs: inputs of products that were cast are kept narrow; else they are kept wide and cast again.
        gathers_narrow_operands: tensor ranks gather operands that are cast already, where their scales allow it.
        gathers_narrow_weights: data ranks gather weights in the type of narrow products, where its scales allow it.
        transfers_overlap: share of a transfer between stages that computation hides.
        overlaps_chunk_transfers: under an interleaved schedule a transfer runs beside the computation of another chunk
            (Megatron's `overlap_p2p_comm`); `Scale.shown` of it costs nevertheless.
        data_overlap: share of the gradient reduction and weight gathering that is started early enough to run beside
            the last backward and the next forward; `Scale.shown` of it costs nevertheless.
        sharded_overlap: the same of the gathers and reductions of every layer under ZeRO-2 and 3.
        stops_recompute_early: full recomputation of a layer ends when it has made the last tensor that backward needs,
            which is the input of its last product (torch.utils.checkpoint without reentrance).
        loss_passes: fp32 values that the loss reads and writes for every logit, forward and backward.
        launch_seconds: of the host, Python included, for one kernel of a layer; 0 where a graph launches all of them.
        graphs_layers: graphs launch a layer's kernels but those around its experts, whose sizes are known late
            (Megatron-Core's `cuda_graph_scope` of attention, router and preprocessing).
        blocks_launches: the host waits for every kernel (CUDA_LAUNCH_BLOCKING=1), so that it launches nothing ahead:
            host and device work in turn, and nothing runs beside anything else.
        collective_call_seconds: of the host for one call of a collective inside a layer.
        micro_batch_seconds: of the host for one micro-batch beside its layers, for which the device waits: it makes the
            batch, sends it to the tensor ranks, and looks at the loss.
        forward_launches: kernels of one layer's forward pass.
        backward_launches: the same of its backward pass, without what that repeats.
        core_launches: the part of `forward_launches` that is the attention core.
        gathered_messages: collectives that gather the weights of one layer under ZeRO-3.
        scattered_messages: collectives that scatter its gradients under ZeRO-2 and 3.
        listed_rank_seconds: of the host, of every such message, for each rank among which it is shared out: of trainers
            that hand collectives a list of one tensor a rank, each of which is cut out and copied on its own.
        copies_shards: gathers and reductions of ZeRO-2 and ZeRO-3 copy each parameter, whose rows are shared out alone.
            Not counted for this package's own trainer, which does the same and was never measured on two GPUs.
        optimizer_bytes_per_parameter: memory traffic of the update, of one updated parameter; null: as many as this
            package's own trainer moves (`update_bytes`).
        update_working_bytes: of one parameter that a rank owns, beside all states, while it is updated; the allocator
            keeps what is let go meanwhile, as later blocks are larger.
        whole_gradient_bytes: memory traffic of passes over the gradients of all parameters of a rank, whoever updates
            them, of one parameter: they are made zero, scaled, and read for their norm. 0 where they are freed, or are
            counted with the update.
    """

    name: Name
    flash_attention: bool = True
    attention_rate: float = 1.0
    attention_since_hopper: float = 1.0
    memory_traffic: float = 1.0
    is_eager: bool = True
    is_compiled: bool = False
    dropout: bool = False
    gradient_bytes: Count = 4
    fp16_gradient_bytes: Count = 4
    counted_moments: bool = True
    shards_masters: bool = True
    live_parameters: Count | None = None
    selective_operators: bool = False
    keeps_unused_outputs: bool = False
    loss_copies: int = 1
    split_loss_copies: int = 1
    rotated_copies: bool = False
    reduced_bytes: Count = 4
    fp16_reduced_bytes: Count = 4
    norm_statistics: int = 4
    log_sum_exp_bytes: int = 4
    kept_outputs: Literal["whole", "part", "none"] = "none"
    scattered_transfers: bool = False
    context_ring: bool = True
    overlaps_weight_gradient: bool = True
    tensor_overlap: float = 0.0
    groups_experts: bool = False
    groups_passes: bool = True
    pads_experts: bool = False
    defers_experts: bool = False
    unfused_expert_biases: bool = False
    experts_overlap: float = 0.0
    casts_anew: bool = True
    keeps_narrow_inputs: bool = False
    gathers_narrow_operands: bool = False
    gathers_narrow_weights: bool = False
    transfers_overlap: float = 0.0
    overlaps_chunk_transfers: bool = False
    data_overlap: float = 1.0
    sharded_overlap: float = 1.0
    stops_recompute_early: bool = False  # its own products save their input after they ran
    loss_passes: Annotated[tuple[int, int], Field(strict=False)] = (3, 1)
    launch_seconds: float = 20e-6  # assumed: half of what an older host and Megatron's layers take
    graphs_layers: bool = False
    blocks_launches: bool = False
    collective_call_seconds: float = 60e-6
    micro_batch_seconds: float = 0.0  # not known
    forward_launches: Count = 16  # two norms, four products, core, activation, two additions, moves of heads and biases
    backward_launches: Count = 32
    core_launches: Count = 1
    gathered_messages: Count = 1
    scattered_messages: Count = 1
    listed_rank_seconds: float = 0.0
    copies_shards: bool = False
    optimizer_bytes_per_parameter: float | None = None
    update_working_bytes: int = 0
    whole_gradient_bytes: float = 0.0

    def in_training(self, dropout: float, *, compiles: bool) -> Implementation:
        """The trainer in a training that drops values with this probability, and may compile its layers."""
        return self.model_copy(update={"dropout": self.dropout or dropout > 0, "is_compiled": compiles})

    @property
    def layers_are_eager(self) -> bool:
        return self.is_eager and not self.is_compiled


TRISWEEP = Implementation(name="trisweep")
"""This trainer. Gradients of a bucket are reduced while backward makes those of the next, and new weights are gathered
beside the next forward pass (train_core/parallel/data_parallel.py; FSDP2 does both). The backward passes of
train_core/parallel/tensor_parallel.py overlap their own collectives. Transfers wait for the receiver."""


def _implementations() -> dict[str, Implementation]:
    known = {TRISWEEP.name: TRISWEEP}
    for name, apart in package_content("trainers.yaml", "costs").items():
        known[name] = Implementation(**{**dict(known[apart.pop("like")]), **apart, "name": name})
    return known


IMPLEMENTATIONS = _implementations()
"""Every trainer by its name; `trainers.yaml` says what sets each apart."""
FSDP, TORCHTITAN = IMPLEMENTATIONS["fsdp"], IMPLEMENTATIONS["torchtitan"]
TORCHTITAN_EAGER = TORCHTITAN.model_copy(update={"memory_traffic": FSDP.memory_traffic, "keeps_unused_outputs": True})
"""The same with `compile.enable = false`, which is torchtitan's default; its traffic is that of any eager FSDP."""
TORCHTITAN_COMPILED_LOSS = TORCHTITAN.model_copy(update={"loss_copies": 1})
"""Since April 2025 what compiles the layers compiles the loss too (torchtitan's pull request 1033). That one copy in
fp32 is left is fitted on the two rows of its H200 page, which are no test of it."""
