"""What differs between trainers that carry out the same plan. Each trainer is declared here and chosen by its name."""

from __future__ import annotations

from conf.schema import Count, Frozen, Name


class Implementation(Frozen):
    """A trainer, as far as the cost of its step differs from another's.

    Attributes:
        flash_attention: one fused kernel that never stores the scores; else a softmax between two batched products.
        attention_rate: rate of that kernel relative to the best one for the device.
        memory_traffic: bytes that norms, activations and residuals move, relative to kernels fused as far as possible.
        dropout: after attention, in it (unfused only), and after the feed-forward layer; keeps one byte of mask each.
            Trainers that drop values only if a training asks for it have it off here; `dropping` turns it on.
        gradient_bytes: of one accumulated gradient (4: fp32 main gradients).
        fp16_gradient_bytes: the same where weights are fp16, since some trainers accumulate fp16 gradients as they are.
        counted_moments: which moment of a step is the fullest is known, from rehearsals of the trainer, which makes a
            weight's gradient in the width of activations before adding it to what is accumulated. Otherwise all that is
            held at some moment of a layer's backward and of the loss is taken to be held at once.
        reduced_bytes: of one gradient element on the wire.
        norm_statistics: values per token that the two norms of a layer keep, in the width of activations.
        log_sum_exp_bytes: kept by flash attention per token and head.
        whole_stage_outputs: every tensor rank keeps a stage's whole output until its backward; otherwise a part of it,
            as in trainers that send the output in parts.
        scattered_transfers: each tensor-parallel rank sends a part of the activation to the next stage, which gathers
            it again (arXiv 2104.04473, section 4.1).
        context_ring: context ranks pass keys and values on beside the blocks of the core; else they gather all at once.
        overlaps_weight_gradient: tensor-parallel collectives of backward run beside the gradients' products: the
            reduction of the input gradient beside the weight gradient of the same product, and the gather that sequence
            parallelism repeats. On a CPU nothing overlaps, because the ranks' own cores carry out the collectives.
        transfers_overlap: share of a transfer between stages that computation hides.
        data_overlap: share of the gradient reduction and weight gathering that is started early enough to run beside
            the last backward and the next forward; `Scale.shown` of it costs nevertheless.
        sharded_overlap: the same of the gathers and reductions of every layer under ZeRO-2 and 3.
        stops_recompute_early: full recomputation of a layer ends when it has made the last tensor that backward needs,
            which is the input of its last product (torch.utils.checkpoint without reentrance).
        loss_passes: fp32 values that the loss reads and writes for every logit, forward and backward.
        launch_seconds: of the host, Python included, for one kernel of a layer; 0 where a graph launches all of them.
        collective_call_seconds: of the host for one call of a collective inside a layer.
        forward_launches: kernels of one layer's forward pass.
        backward_launches: the same of its backward pass, without what that repeats.
        core_launches: the part of `forward_launches` that is the attention core.
        sharded_messages: collectives that gather or scatter one layer under ZeRO-2 and 3.
        optimizer_bytes_per_parameter: memory traffic of the update, of one updated parameter.
    """

    name: Name
    flash_attention: bool
    attention_rate: float
    memory_traffic: float
    dropout: bool
    gradient_bytes: Count
    fp16_gradient_bytes: Count
    counted_moments: bool
    reduced_bytes: Count
    norm_statistics: int
    log_sum_exp_bytes: int
    whole_stage_outputs: bool
    scattered_transfers: bool
    context_ring: bool
    overlaps_weight_gradient: bool
    transfers_overlap: float
    data_overlap: float
    sharded_overlap: float
    stops_recompute_early: bool
    loss_passes: tuple[int, int]
    launch_seconds: float
    collective_call_seconds: float
    forward_launches: Count
    backward_launches: Count
    core_launches: Count
    sharded_messages: Count
    optimizer_bytes_per_parameter: float

    def dropping(self, probability: float) -> Implementation:
        """The trainer in a training that drops values with this probability."""
        return self.model_copy(update={"dropout": self.dropout or probability > 0})
