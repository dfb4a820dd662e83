"""Numbers and bytes of the collectives in which one rank takes part during a step of this trainer.

The rehearsal counts the same from the trainer itself, and tests hold the two equal. Bytes are those of the whole tensor
that is summed, gathered, scattered or sent; `collectives` says how many of them pass a link.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, NamedTuple

from pydantic import Field

from conf.plan.experiment import Experiment
from conf.types.recompute import MODES, Repeated
from conf.types.schema import Frozen
from conf.units import FLOAT32_BYTES
from costs.axes import EXPERT, EXPERT_REPLICAS
from costs.counts.buckets import (
    buckets_of,
    first_share,
    layer_parameters_of,
    num_replicas,
    parameters_of,
    ranks_of_stage,
)
from costs.counts.muon import muon_exchanges
from costs.counts.parameters import attention_matrices
from costs.setting import DTYPE_BYTES

INT64_BYTES = 8  # of a count of tokens
LOSS_PARTS = 3  # largest logit, sum of exponentials and target's logit of every token, in fp32
WORLD_BYTES = 16  # mean loss and squared norm of the gradient, in fp64


class Kind(NamedTuple):
    """A kind of collective (all_reduce, all_gather, reduce_scatter, all_to_all, send or receive) over a group of ranks.

    Groups are axes of the mesh (`costs.axes`), `embedding` (the two copies of a tied one) and `world`.
    """

    group: str
    kind: str


class GroupTraffic(Frozen):
    """The collectives of one kind that one rank takes part in during a step."""

    group: str
    kind: str
    number: Annotated[int, Field(ge=0)]
    num_bytes: Annotated[int, Field(ge=0)]


class TrafficTally:
    def __init__(self) -> None:
        self.number: Counter[Kind] = Counter()
        self.num_bytes: Counter[Kind] = Counter()

    def add(self, group: str, kind: str, number: int, bytes_each: int) -> None:
        self.number[Kind(group, kind)] += number
        self.num_bytes[Kind(group, kind)] += number * bytes_each

    def rows(self) -> tuple[GroupTraffic, ...]:
        """Return what was counted, sorted by group and kind, without those of which there is none."""
        return tuple(
            GroupTraffic(group=key.group, kind=key.kind, number=self.number[key], num_bytes=self.num_bytes[key])
            for key in sorted(self.number)
            if self.number[key]
        )


def stage_traffic(experiment: Experiment, stage: int) -> tuple[GroupTraffic, ...]:
    """Count what the first rank of a stage sends, receives and reduces in one step."""
    tally = TrafficTally()
    if experiment.parallel.tensor_parallel_size > 1:
        _add_tensor(tally, experiment, stage)
    if experiment.parallel.context_parallel_size > 1:
        _add_context(tally, experiment, stage)
    if experiment.model.experts is not None:
        _add_experts(tally, experiment, stage)
    _add_pipeline(tally, experiment, stage)
    if experiment.is_fully_sharded:
        _add_shards(tally, experiment)
    else:
        _add_gradients(tally, experiment, stage)
    for group, num_bytes in muon_exchanges(experiment, stage):
        tally.add(group, "all_to_all", 1, num_bytes)
    if experiment.parallel.world_size > 1:
        tally.add("world", "all_reduce", 1, WORLD_BYTES)
    return tally.rows()


def _num_tokens(experiment: Experiment) -> int:
    """The tokens of one micro-batch that a rank works on, together with the other tensor ranks."""
    sequences = experiment.batch.micro_batch_size * experiment.model.seq_length
    return sequences // experiment.parallel.context_parallel_size


def _hidden_bytes(experiment: Experiment) -> int:
    """Bytes of the whole activation of one micro-batch between two layers."""
    return _num_tokens(experiment) * experiment.model.hidden_size * DTYPE_BYTES[experiment.precision.dtype]


class _Passes(NamedTuple):
    """Passes through the layers of a stage for each micro-batch.

    Attributes:
        forward: through all of them, recomputation included; backward, without.
        sparse_forward, sparse_backward: through those with experts.
    """

    forward: int
    backward: int
    sparse_forward: int
    sparse_backward: int


def _passes(experiment: Experiment, stage: int, *parts: Repeated, outside: int = 0) -> _Passes:
    """The passes through one of these parts of a layer, without so many layers at each end."""
    parallel, dense = experiment.parallel, experiment.model.num_dense_layers
    times = 1 if set(parts).isdisjoint(MODES[parallel.recompute].repeats) else 2
    placed = [(layer, place) for chunk in experiment.chunk_ranges[stage] for place, layer in enumerate(chunk)]
    all_of = [each for each in placed if outside <= each[0] < experiment.model.num_layers - outside]
    # The first of each chunk, and every n-th after it, recompute something.
    forward = [(layer, times if place % parallel.recompute_every == 0 else 1) for layer, place in all_of]
    return _Passes(
        sum(number for _, number in forward),
        len(all_of),
        sum(number for layer, number in forward if layer >= dense),
        sum(layer >= dense for layer, _ in all_of),
    )


def _add_tensor(tally: TrafficTally, experiment: Experiment, stage: int) -> None:
    """Source: arXiv 1909.08053, section 3; with sequence parallelism arXiv 2205.05198, section 4.2.2."""
    parallel, m, hidden = experiment.parallel, experiment.num_micro_batches, _hidden_bytes(experiment)
    passes, is_last = _passes(experiment, stage, "layer"), stage == parallel.pipeline_parallel_size - 1
    if experiment.precision.matmul_recipe == "fp8-tensorwise":
        _add_largest_values(tally, experiment, stage)
    # Of attention, and of a feed-forward network: a product of each kind. Of experts ranks hold whole ones.
    of_experts = 1 if experiment.model.experts is None or experiment.model.experts.shared_ffn_hidden_size else 0
    forward = 2 * passes.forward - (1 - of_experts) * passes.sparse_forward
    backward = 2 * passes.backward - (1 - of_experts) * passes.sparse_backward
    if "wide_qk_norm" in experiment.model.parts:  # a sum of each token, of queries and of keys
        tally.add(
            "tensor", "all_reduce", 2 * m * (passes.forward + passes.backward), _num_tokens(experiment) * FLOAT32_BYTES
        )
    latent = _add_short_vectors(tally, experiment, passes)
    if parallel.sequence_parallel:
        # Column products gather their input, and anew for the weight gradient; row products their output's gradient.
        # A row product whose weight gradient is put off keeps only its shard of the gradient, and gathers it again.
        again = 3 if parallel.schedule == "zero-bubble" else 2
        # The head is a column product, so that the last stage gathers for it forward and backward; the first one
        # gathers the gradient of the embedding's output.
        ends = (stage == 0) + 2 * is_last
        tally.add("tensor", "all_gather", m * (forward + again * backward + ends) - latent.forward, hidden)
        scattered = m * (forward + backward + (stage == 0) + is_last) - latent.backward
        tally.add("tensor", "reduce_scatter", scattered, hidden)
    else:
        tally.add("tensor", "all_reduce", m * (forward + backward + (stage == 0) + is_last) - latent.backward, hidden)
    if is_last:
        parts = LOSS_PARTS * _num_tokens(experiment) * parallel.tensor_parallel_size * FLOAT32_BYTES
        tally.add("tensor", "all_gather", m, parts)


def _add_largest_values(tally: TrafficTally, experiment: Experiment, stage: int) -> None:
    """Of operands in fp8 of which each rank has a part: those of every product forward, output gradients backward.

    All ranks have the whole of a row product's output gradient, and each all of what makes latent attention's vectors.
    """
    m, t = experiment.num_micro_batches, experiment.parallel.tensor_parallel_size
    passes = _passes(experiment, stage, "layer", outside=experiment.precision.wide_layers)
    of_attention = Counter(matrix.split for matrix in attention_matrices(experiment.model))
    # Of experts ranks hold whole ones, but the one that all tokens pass through.
    of_experts = 1 if experiment.model.experts is None or experiment.model.experts.shared_ffn_hidden_size else 0
    each_forward, each_backward = of_attention["columns"] + of_attention["rows"] + 2, of_attention["columns"] + 1
    forward = each_forward * passes.forward - 2 * (1 - of_experts) * passes.sparse_forward
    backward = each_backward * passes.backward - (1 - of_experts) * passes.sparse_backward
    tally.add("tensor", "all_gather", m * forward, 2 * t * FLOAT32_BYTES)
    tally.add("tensor", "all_gather", m * backward, t * FLOAT32_BYTES)


class _Replaced(NamedTuple):
    """Collectives of whole activations, gathered and summed, in whose places latent attention has short ones."""

    forward: int = 0
    backward: int = 0


def _add_short_vectors(tally: TrafficTally, experiment: Experiment, passes: _Passes) -> _Replaced:
    """The inputs of the ways up of latent attention, and the part of the keys that all heads share.

    A way up gathers its input again in backward, for its weight's gradient. Nothing else is made of what heads share.
    """
    parallel, latent, m = experiment.parallel, experiment.model.latent_attention, experiment.num_micro_batches
    if latent is None:
        return _Replaced()
    forward, backward = m * passes.forward, m * passes.backward
    element = _hidden_bytes(experiment) // experiment.model.hidden_size
    query = latent.query_rank or experiment.model.hidden_size
    for width, again in ((query, backward), (latent.key_value_rank, backward), (latent.rotary_head_size, 0)):
        if parallel.sequence_parallel:
            tally.add("tensor", "all_gather", forward + again, width * element)
        tally.add("tensor", "reduce_scatter" if parallel.sequence_parallel else "all_reduce", backward, width * element)
    return _Replaced(forward + backward, backward)


def _add_context(tally: TrafficTally, experiment: Experiment, stage: int) -> None:
    """Keys and values in every pass of attention, and backward their gradients with them.

    Source: arXiv 2310.01889 of the ring; arXiv 2407.21783, section 3.3.2, of the gather.
    """
    parallel, model = experiment.parallel, experiment.model
    passes = _passes(experiment, stage, "layer", "core")
    forward, backward = (experiment.num_micro_batches * count for count in (passes.forward, passes.backward))
    width = model.key_value_size + model.value_size
    elements = _num_tokens(experiment) * width // parallel.tensor_parallel_size
    own, c = elements * DTYPE_BYTES[experiment.precision.dtype], parallel.context_parallel_size
    if parallel.context_exchange == "gather":
        tally.add("context", "all_gather", forward + backward, c * own)
        tally.add("context", "reduce_scatter", backward, c * own)
    else:
        for kind in ("receive", "send"):
            # In c - 1 hops everything has been at every rank; backward the gradients go round with keys and values.
            tally.add("context", kind, (c - 1) * (forward + 2 * backward), own)


def _add_experts(tally: TrafficTally, experiment: Experiment, stage: int) -> None:
    """Counts, tokens and their weights to the experts, and results back; backward their gradients.

    Tokens are taken to go to all experts evenly.

    Source: arXiv 2006.16668, section 3.2.
    """
    parallel, experts, passes = experiment.parallel, experiment.model.experts, _passes(experiment, stage, "layer")
    assert experts is not None
    forward, backward = (experiment.num_micro_batches * n for n in (passes.sparse_forward, passes.sparse_backward))
    spread = parallel.tensor_parallel_size if parallel.sequence_parallel else 1
    if experts.balance_loss:
        shares = experiment.batch.micro_batch_size * experts.num_experts * FLOAT32_BYTES
        for axis, size in (("tensor", spread), ("context", parallel.context_parallel_size)):
            tally.add(axis, "all_reduce", forward if size > 1 else 0, shares)
    if experts.capacity_factor is not None:  # choices of all tokens of a sequence
        c, choices = parallel.context_parallel_size, _num_tokens(experiment) * experts.top_k * INT64_BYTES
        tally.add("tensor", "all_gather", forward if spread > 1 else 0, choices)
        tally.add("context", "all_gather", forward if c > 1 else 0, c * choices)
    e = parallel.expert_parallel_size
    if experts.balance_bias:  # rows of each expert, after the last pass
        layers = passes.sparse_backward
        for group, size in ((EXPERT, e), (EXPERT_REPLICAS, ranks_of_stage(experiment) // e)):
            number = 1 if layers and size > 1 else 0
            tally.add(group, "all_reduce", number, layers * experts.num_experts * INT64_BYTES)
    if e > 1:
        rows = _num_tokens(experiment) // spread * experts.top_k
        row = experiment.model.hidden_size * DTYPE_BYTES[experiment.precision.dtype]
        tally.add(EXPERT, "all_gather", forward, e * experts.num_experts * INT64_BYTES)
        # Tokens go to their experts and results come back, in each pass once; the weights go one way, and their
        # gradients back.
        tally.add(EXPERT, "all_to_all", 2 * (forward + backward), rows * row)
        tally.add(EXPERT, "all_to_all", forward + backward, rows * FLOAT32_BYTES)


def _add_pipeline(tally: TrafficTally, experiment: Experiment, stage: int) -> None:
    """Activations one way and their gradients the other, for every chunk except at the two ends of the model."""
    parallel, m = experiment.parallel, experiment.num_micro_batches
    last = parallel.pipeline_parallel_size - 1
    if last == 0:
        return
    # Under sequence parallelism each tensor rank holds, and so sends, only its part of the sequence.
    shards = parallel.tensor_parallel_size if parallel.sequence_parallel else 1
    # A chunk receives an activation and sends one, or the gradients of both: but the model's first chunk receives none
    # and the last one sends none.
    passes = 2 * parallel.virtual_pipeline_size - (stage == 0) - (stage == last)
    for kind in ("receive", "send"):
        tally.add("pipeline", kind, m * passes, _hidden_bytes(experiment) // shards)


def _add_gradients(tally: TrafficTally, experiment: Experiment, stage: int) -> None:
    """Each bucket is summed over the replicas, then a rank's part over tensor ranks and a tied embedding's two stages.

    Source: arXiv 1910.02054, section 7 (ZeRO).
    """
    parallel, precision = experiment.parallel, experiment.precision
    scatters = parallel.zero_stage >= 1 and experiment.cluster.device.kind == "gpu"  # as in data_parallel.FlatReplicas
    # Under ZeRO-2 no rank keeps whole gradients, so they are summed after every micro-batch instead of once a step.
    times = experiment.num_micro_batches if parallel.zero_stage == 2 else 1
    for treatment, _, length in buckets_of(experiment, stage):
        gradients, group = length * DTYPE_BYTES[precision.gradient_dtype], treatment.reduced_over[0]
        d = num_replicas(experiment, treatment)
        shards = d if parallel.zero_stage >= 1 else 1
        if d > 1:
            tally.add(group, "reduce_scatter" if scatters else "all_reduce", times, gradients)
            weights = length * DTYPE_BYTES[precision.dtype]
            tally.add(group, "all_gather", int(parallel.zero_stage >= 1), weights)
        for group in treatment.summed_over:
            tally.add(group, "all_reduce", 1, gradients // shards)


def _add_shards(tally: TrafficTally, experiment: Experiment) -> None:
    """ZeRO-3, which has no pipeline. In every micro-batch, each layer is gathered for each of its two passes, and what
    is around the layers once; after backward the gradients of each are reduced.

    FSDP2 shares out the rows of each parameter. The first rank has the most, and all shares are padded to its size.

    Source: arXiv 1910.02054, section 7.2.2.
    """
    precision, d, m = experiment.precision, experiment.num_replicas, experiment.num_micro_batches
    num_layers, parameters = experiment.model.num_layers, list(parameters_of(experiment, 0))
    layer = d * sum(first_share(parameter, d) for parameter in layer_parameters_of(experiment))
    # What is in no layer: all parameters less those of the layers.
    around = d * sum(first_share(parameter, d) for parameter in parameters) - num_layers * layer
    for length, gathers, sums in ((layer, 2 * m * num_layers, m * num_layers), (around, m, m)):
        tally.add("data", "all_gather", gathers, length * DTYPE_BYTES[precision.dtype])
        tally.add("data", "reduce_scatter", sums, length * DTYPE_BYTES[precision.gradient_dtype])
    for parameter in parameters:
        for group in parameter.treatment.summed_over:
            tally.add(group, "all_reduce", 1, first_share(parameter, d) * FLOAT32_BYTES)
