"""How many parameters the model has, in all and on one rank. Sizes may be numbers or arrays of any shape."""

from __future__ import annotations

from conf.world import ModelSpec
from train_core.costs.setting import Size


def num_parameters(model: ModelSpec) -> int:
    """All trainable parameters, a tied embedding counted once.

    Source: arXiv 2104.04473, equation 2, with the final norm and biases counted exactly.
    """
    return (
        model.num_layers * layer_parameters(model, 1)
        + embedding_parameters(model, 1)
        + final_norm_parameters(model)
        + (0 if model.tied_embeddings else token_embedding_parameters(model, 1))
    )


def layer_parameters(model: ModelSpec, tensor_parallel_size: Size) -> Size:
    """One transformer layer on one tensor-parallel rank: matrices, and for the GPT family biases."""
    h, f, t = model.hidden_size, model.ffn_hidden_size, tensor_parallel_size
    q, kv = model.query_size, model.key_value_size
    columns = h * (q + 2 * kv) // t + (2 if model.gated_mlp else 1) * (h * f // t)  # split by output features
    rows = q * h // t + f * h // t  # split by input features
    held: Size = columns + rows + 2 * h
    # Biases of column products are split with their outputs; those of row products and of norms are whole on each rank.
    if model.family == "gpt":
        held = held + (q + 2 * kv) // t + h + (2 if model.gated_mlp else 1) * (f // t) + h + 2 * h
    return held


def embedding_parameters(model: ModelSpec, tensor_parallel_size: Size) -> Size:
    """Tokens (split over the vocabulary) and, for the GPT family, positions (whole on every rank)."""
    positions = model.seq_length * model.hidden_size if model.family == "gpt" else 0
    held: Size = token_embedding_parameters(model, tensor_parallel_size) + positions
    return held


def token_embedding_parameters(model: ModelSpec, tensor_parallel_size: Size) -> Size:
    held: Size = model.vocab_size // tensor_parallel_size * model.hidden_size
    return held


def final_norm_parameters(model: ModelSpec) -> int:
    return (2 if model.family == "gpt" else 1) * model.hidden_size
