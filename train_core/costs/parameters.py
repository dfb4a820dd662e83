"""How many parameters the model has, in all and on one rank."""

from __future__ import annotations

from conf.experiment import Experiment
from conf.schema import ModelSpec


def num_parameters(model: ModelSpec) -> int:
    """All trainable parameters, the tied embedding counted once.

    Source: arXiv 2104.04473, equation 2, with the final LayerNorm and biases counted exactly.
    """
    return (
        model.num_layers * layer_parameters(model, tensor_parallel_size=1)
        + embedding_parameters(model, tensor_parallel_size=1)
        + final_norm_parameters(model)
    )


def layer_parameters(model: ModelSpec, tensor_parallel_size: int) -> int:
    """One transformer layer on one tensor-parallel rank."""
    h, f, t = model.hidden_size, model.ffn_hidden_size, tensor_parallel_size
    attention = 3 * h * h // t + 3 * h // t + h * h // t + h  # qkv split by columns, projection by rows, its bias whole
    feed_forward = h * f // t + f // t + f * h // t + h
    norms = 4 * h
    return attention + feed_forward + norms


def embedding_parameters(model: ModelSpec, tensor_parallel_size: int) -> int:
    """Tokens (split over the vocabulary) and positions (whole on every rank)."""
    return token_embedding_parameters(model, tensor_parallel_size) + model.seq_length * model.hidden_size


def token_embedding_parameters(model: ModelSpec, tensor_parallel_size: int) -> int:
    return model.vocab_size // tensor_parallel_size * model.hidden_size


def final_norm_parameters(model: ModelSpec) -> int:
    return 2 * model.hidden_size


def stage_parameters(experiment: Experiment, stage: int) -> int:
    """Parameters that one rank of a pipeline stage holds; the last stage holds a copy of the tied token embedding."""
    model, parallel = experiment.model, experiment.parallel
    t, p = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    held = model.num_layers // p * layer_parameters(model, t)
    if stage == 0:
        held += embedding_parameters(model, t)
    if stage == p - 1:
        held += final_norm_parameters(model) + (token_embedding_parameters(model, t) if p > 1 else 0)
    return held
