"""The largest model and micro-batch for which prices are exact: columns are 64-bit integers."""

from __future__ import annotations

from conf.errors import ConfigError
from conf.types.model_spec import ModelSpec
from train_core.costs.counts.parameters import num_parameters

LARGEST_SIZE = 2**56  # elements, parameters or products; bytes and FLOPs of anything larger could leave 64 bits


def largest_micro_batch_size(model: ModelSpec) -> int:
    """The largest micro-batch for which all sizes fit in 64 bits; 0 if those of the parameters alone do not."""
    return 0 if num_parameters(model) > LARGEST_SIZE else LARGEST_SIZE // _largest_of_a_sequence(model)


def _largest_of_a_sequence(model: ModelSpec) -> int:
    """Return the elements that all layers may keep of a sequence, or the products of an attention core, if more."""
    scores = model.seq_length * model.num_attention_heads
    widths = scores + model.query_size + model.hidden_size + model.ffn_hidden_size + model.vocab_size
    return model.seq_length * max(model.num_layers * widths, model.seq_length * model.query_size)


def require_computable(model: ModelSpec, micro_batch_size: int) -> None:
    """Refuse sizes, such as those of a typing error, that 64-bit arithmetic would silently turn into nonsense.

    Raises:
        ConfigError: the model or the micro-batch has such sizes.
    """
    most = largest_micro_batch_size(model)
    if micro_batch_size <= most:
        return
    if most:
        problem = f"makes activations beyond pricing: the largest of {model.name} is {most:,}"
        raise ConfigError("batch.micro_batch_size", micro_batch_size, problem, "Correct it, or model.seq_length.")
    billions = num_parameters(model) / 1e9
    raise ConfigError(
        "model.hidden_size",
        model.hidden_size,
        f"makes a model of {billions:,.0f} billion parameters, or activations, beyond pricing",
        "Correct model.num_layers, model.hidden_size or model.seq_length.",
    )
