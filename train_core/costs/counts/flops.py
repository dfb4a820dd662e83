"""Floating-point operations of one step. Two functions, two names: what the step needs, and what the hardware does."""

from __future__ import annotations

from conf.schema import Recompute
from conf.world import ModelSpec

FLOPS_FORMULA = "matmul-full-square-v1"
"""Id of the convention below: matrix products only, attention scores counted in full (not halved for causality)."""


def layer_forward_flops(model: ModelSpec, num_sequences: int) -> int:
    """Matrix products of one layer's forward pass: qkv, scores, weighted values, projection, feed-forward.

    Source: arXiv 2205.05198, appendix A: 24 b s h^2 (1 + s / 6h) where ffn_hidden_size = 4h.
    """
    b, s, h, f = num_sequences, model.seq_length, model.hidden_size, model.ffn_hidden_size
    projections = h * (2 * model.query_size + 2 * model.key_value_size)
    feed_forward = (3 if model.gated_mlp else 2) * h * f
    return 2 * b * s * (projections + feed_forward) + attention_core_forward_flops(model, num_sequences)


def attention_core_forward_flops(model: ModelSpec, num_sequences: int) -> int:
    """Scores (q k^T) and weighted values, over the full square: what selective recomputation repeats."""
    return 4 * num_sequences * model.seq_length**2 * model.query_size


def head_forward_flops(model: ModelSpec, num_sequences: int) -> int:
    """The output projection onto the vocabulary."""
    return 2 * num_sequences * model.seq_length * model.hidden_size * model.vocab_size


def model_flops(model: ModelSpec, num_sequences: int) -> int:
    """Forward and backward of one step over all devices.

    Backward costs twice the forward: each product has one to its input and one to its weight.

    Source: arXiv 2205.05198, equation 7: 72 B L s h^2 (1 + s / 6h + V / 12hL) where ffn_hidden_size = 4h.
    """
    return stage_model_flops(model, num_sequences, model.num_layers, has_head=True)


def stage_model_flops(model: ModelSpec, num_sequences: int, num_layers: int, *, has_head: bool) -> int:
    """The part of `model_flops` that so many layers need, and the head where it is with them."""
    head = head_forward_flops(model, num_sequences) if has_head else 0
    return 3 * (num_layers * layer_forward_flops(model, num_sequences) + head)


def hardware_flops(
    model: ModelSpec, num_sequences: int, recompute: Recompute, num_recomputed: int | None = None
) -> int:
    """`model_flops` plus the recomputed forward passes: the layers for full, the attention core for selective.

    Args:
        num_recomputed: layers in which that happens; None for all.

    Published figures count like this, and it is what the trainer executes.

    Source: arXiv 2104.04473, equation 3 (full); arXiv 2205.05198, equation 8 (selective).
    """
    repeated = {
        "none": 0,
        "selective": attention_core_forward_flops(model, num_sequences),
        "full": layer_forward_flops(model, num_sequences),
        "pointwise": 0,  # no matrix product is repeated
    }[recompute]
    layers = model.num_layers if num_recomputed is None else num_recomputed
    return model_flops(model, num_sequences) + layers * repeated
