"""Floating-point operations of one step. Two functions, two names: what the step needs, and what the hardware does."""

from __future__ import annotations

from typing import NamedTuple

from conf.types.model_spec import ExpertsSpec, ModelSpec
from conf.types.recompute import MODES, Recompute, Repeated
from conf.types.schema import ParallelPlan
from costs.counts.parameters import attention_matrices, feed_forward_matrices

FLOPS_FORMULA = "matmul-full-square-v1"
"""Id of the convention below: matrix products only, attention scores counted in full (not halved for causality).

Of experts it counts those that a token is routed to, with the router."""

DOCUMENT_FLOPS_FORMULA = "matmul-document-square-v1"
"""Id of the same where documents are separate: scores count over the full square of each document."""


class DoneShares(NamedTuple):
    """The parts of a step's work that its data leaves to do, which only a training knows.

    Attributes:
        attended: the pairs of tokens in one document, of all pairs in a sequence; less than 1 where documents are
            separate.
        kept: the choices of experts that found room, of all; less than 1 where a capacity drops some.
    """

    attended: float = 1.0
    kept: float = 1.0


ALL = DoneShares()


def layer_forward_flops(model: ModelSpec, num_sequences: int) -> int:
    """Matrix products of one layer's forward pass: qkv, scores, weighted values, projection, feed-forward.

    Source: arXiv 2205.05198, appendix A: 24 b s h^2 (1 + s / 6h) where ffn_hidden_size = 4h.
    """
    return _layer_flops(model, num_sequences, model.ffn_hidden_size, others=0)


def expert_layer_forward_flops(model: ModelSpec, num_sequences: int) -> int:
    """The same of a layer with experts: its router, the experts that a token is meant for, and the shared expert.

    As if every token passed through `top_k` experts; see `DoneShares` for those that a capacity drops.
    """
    experts = model.experts
    assert experts is not None
    chosen, router = _chosen_elements(model, experts), model.hidden_size * experts.num_experts
    return _layer_flops(model, num_sequences, experts.shared_ffn_hidden_size, others=chosen + router)


def _chosen_elements(model: ModelSpec, experts: ExpertsSpec) -> int:
    return experts.top_k * sum(matrix.size for matrix in feed_forward_matrices(model, experts.ffn_hidden_size))


def _layer_flops(model: ModelSpec, num_sequences: int, ffn_hidden_size: int, others: int) -> int:
    """Forward FLOPs of a layer whose matrices are known but for `others`, so many elements for each token."""
    matrices = attention_matrices(model) + feed_forward_matrices(model, ffn_hidden_size)
    elements = sum(matrix.size for matrix in matrices) + others
    # A product of matrices takes a multiplication and an addition for each element of the matrix and each token.
    core = attention_core_forward_flops(model, num_sequences)
    return 2 * num_sequences * model.seq_length * elements + core


def attention_core_forward_flops(model: ModelSpec, num_sequences: int) -> int:
    """Scores (q k^T) and weighted values, over the full square: what selective recomputation repeats.

    Of layers with windows or linear attention the part of the square that they see, or that costs as much.
    """
    # Scores have the depth of all heads' queries, weighted values the width of all heads' values.
    square = 2 * num_sequences * model.seq_length**2 * (model.query_size + model.attended_size)
    return square if model.seen_share == 1.0 else round(square * model.seen_share)


def head_forward_flops(model: ModelSpec, num_sequences: int) -> int:
    """The output projection onto the vocabulary."""
    return 2 * num_sequences * model.seq_length * model.hidden_size * model.vocab_size


def spared_flops(model: ModelSpec, num_sequences: int, num_cores: int, num_mixtures: int, done: DoneShares) -> int:
    """The FLOPs of what is not done in so many forward passes of an attention core, and of the experts of a layer."""
    spared = (1 - done.attended) * num_cores * attention_core_forward_flops(model, num_sequences)
    if model.experts is not None:
        chosen = 2 * num_sequences * model.seq_length * _chosen_elements(model, model.experts)
        spared += (1 - done.kept) * num_mixtures * chosen
    return round(spared)


def model_flops(model: ModelSpec, num_sequences: int, done: DoneShares = ALL) -> int:
    """Forward and backward of one step over all devices.

    Backward costs twice the forward: each product has one to its input and one to its weight.

    Source: arXiv 2205.05198, equation 7: 72 B L s h^2 (1 + s / 6h + V / 12hL) where ffn_hidden_size = 4h.
    """
    num_layers, num_mixtures = model.num_layers, model.num_layers - model.num_dense_layers
    whole = stage_model_flops(model, num_sequences, range(num_layers), has_head=True)
    return whole - spared_flops(model, num_sequences, 3 * num_layers, 3 * num_mixtures, done)


def stage_model_flops(model: ModelSpec, num_sequences: int, layers: range, *, has_head: bool) -> int:
    """The part of `model_flops` that consecutive layers need, and the head where it is with them.

    Args:
        layers: their indices in the model, whose first layers are the dense ones.
    """
    head = head_forward_flops(model, num_sequences) if has_head else 0
    dense = len(range(layers.start, min(layers.stop, model.num_dense_layers)))
    # Once forward and twice backward, as in `model_flops`.
    return 3 * (_forward_flops(model, num_sequences, dense, len(layers) - dense) + head)


def repeated_flops(model: ModelSpec, num_sequences: int, parallel: ParallelPlan, num_recomputed: int | None) -> int:
    """The FLOPs that this package's own trainer adds to `hardware_flops`: those of tensor ranks that do the same.

    Without sequence parallelism each of them makes the short vectors of latent attention for all tokens.

    Args:
        num_recomputed: as in `hardware_flops`.
    """
    others = 0 if parallel.sequence_parallel else parallel.tensor_parallel_size - 1
    elements = sum(matrix.size for matrix in attention_matrices(model) if matrix.split == "nothing")
    recomputed = model.num_layers if num_recomputed is None else num_recomputed
    again = recomputed if "layer" in MODES[parallel.recompute].repeats else 0
    # Forward once, backward twice, and forward again in layers that are recomputed.
    return others * 2 * num_sequences * model.seq_length * elements * (3 * model.num_layers + again)


def stopped_flops(model: ModelSpec, num_sequences: int, tensor_parallel_size: int, *, drops: bool) -> int:
    """What selective recomputation of a layer leaves out on a CPU, which has no fused kernel for all attention.

    torch repeats until backward has all that it needs, which is before the values are weighted: under dropout those of
    the last head of a rank, whose heads follow one another, and else of all heads where values are wider than queries.
    """
    weighted = 2 * num_sequences * model.seq_length**2 * model.attended_size
    if drops:
        return weighted * tensor_parallel_size // model.num_attention_heads
    return weighted if model.attended_size > model.query_size else 0


def _forward_flops(model: ModelSpec, num_sequences: int, dense: int, others: int) -> int:
    """Forward FLOPs of so many dense layers, and of so many others."""
    if model.experts is None:
        return (dense + others) * layer_forward_flops(model, num_sequences)
    sparse = others * expert_layer_forward_flops(model, num_sequences)
    return dense * layer_forward_flops(model, num_sequences) + sparse


def selected_shares(model: ModelSpec) -> tuple[float, ...]:
    """The parts of attention's products, and of the two of a feed-forward layer, that a selection of operators repeats.

    Kept are attention's output and those of every second product: queries, values, and the gate or the way up. Keys,
    attention's projection and the other half of a gated way up are made again. Nothing needs the output of the way
    down, so that compiled layers do not make it again.
    """
    keys = model.key_value_size / (model.query_size + 2 * model.key_value_size)
    # Of latent attention, whose products outnumber heads' kinds, half of the ways down and up are taken to be kept.
    attention = (keys, 1.0) if model.latent_attention is None else (0.5, 0.5, 0.5, 1.0)
    return (*attention, 0.5 if model.gated_mlp else 0.0, 0.0)


def _selected_flops(model: ModelSpec, num_sequences: int, dense: int, others: int) -> int:
    """What a selection of operators repeats of so many dense layers, and of so many others, but of no expert."""
    elements = dense * _selected_elements(model, model.ffn_hidden_size)
    if model.experts is not None:
        elements += others * _selected_elements(model, model.experts.shared_ffn_hidden_size)
    return 2 * num_sequences * model.seq_length * elements


def _selected_elements(model: ModelSpec, ffn_hidden_size: int) -> int:
    # Layers with experts need not have a feed-forward layer beside them.
    matrices = attention_matrices(model) + feed_forward_matrices(model, ffn_hidden_size)
    return round(sum(share * matrix.size for share, matrix in zip(selected_shares(model), matrices, strict=False)))


def hardware_flops(
    model: ModelSpec,
    num_sequences: int,
    recompute: Recompute,
    num_recomputed: int | None = None,
    done: DoneShares = ALL,
    *,
    num_dense_recomputed: int | None = None,
    selects_operators: bool = False,
) -> int:
    """`model_flops` plus the recomputed forward passes: the layers for full, the attention core for selective.

    Args:
        num_recomputed: layers in which that happens; None for all.
        num_dense_recomputed: those of them that have no experts; None for as large a part of both kinds.
        selects_operators: selective recomputation repeats parts of products in place of the core, as that of trainers
            with `Implementation.selective_operators` does.

    Published figures count like this, and it is what the trainer executes.

    Source: arXiv 2104.04473, equation 3 (full); arXiv 2205.05198, equation 8 (selective).
    """
    layers = model.num_layers if num_recomputed is None else num_recomputed
    dense = (
        model.num_dense_layers * layers // model.num_layers if num_dense_recomputed is None else num_dense_recomputed
    )
    flops: dict[Repeated, int] = {
        "core": layers * attention_core_forward_flops(model, num_sequences),
        "operators": _selected_flops(model, num_sequences, dense, layers - dense),
        "layer": _forward_flops(model, num_sequences, dense, layers - dense),
        "outputs": 0,  # no matrix product is repeated
    }
    parts = MODES[recompute].parts(selects_operators=selects_operators)
    num_cores = layers if "core" in parts or "layer" in parts else 0
    num_mixtures = layers - dense if "layer" in parts else 0
    spared = spared_flops(model, num_sequences, num_cores, num_mixtures, done)
    return model_flops(model, num_sequences, done) + sum(flops[part] for part in parts) - spared
