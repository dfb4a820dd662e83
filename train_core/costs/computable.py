"""How large a model and a micro-batch may be for prices to be exact: columns are 64-bit integers."""

from __future__ import annotations

from conf.errors import ConfigError
from conf.world import ModelSpec
from train_core.costs.parameters import num_parameters

LARGEST_SIZE = 2**56  # elements, parameters or products; bytes and FLOPs of anything larger would not be exact


def largest_micro_batch_size(model: ModelSpec) -> int:
    """The most sequences of which nothing that is computed leaves 64 bits; 0 where the parameters alone do."""
    return 0 if num_parameters(model) > LARGEST_SIZE else LARGEST_SIZE // _largest_of_a_sequence(model)


def _largest_of_a_sequence(model: ModelSpec) -> int:
    """Elements that all layers together may keep, or products of one layer's attention, whichever is more."""
    scores = model.seq_length * model.num_attention_heads
    widths = scores + model.query_size + model.hidden_size + model.ffn_hidden_size + model.vocab_size
    return model.seq_length * max(model.num_layers * widths, model.seq_length * model.query_size)


def require_computable(model: ModelSpec, micro_batch_size: int) -> None:
    """A slip of the keyboard can describe sizes that 64-bit arithmetic turns into nonsense.

    Raises:
        ConfigError: it does.
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
