"""Rows of the token embedding of which every tensor rank takes an equal share: a search pads what does not divide.

A vocabulary that is as it comes from a tokenizer, such as GPT-2's 50,257, would leave one tensor rank alone. What a
plan needs is stated with it, as `model.vocab_size`, so that the plan runs as it was priced.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import lcm
from typing import TypeVar

from conf.model_spec import ModelSpec
from conf.remedies import padded_vocabulary
from conf.setup_parts import SetupParts

Holder = TypeVar("Holder", bound=SetupParts)
KEY = "model.vocab_size"


def padded_model(model: ModelSpec, tensor_parallel_sizes: Iterable[int]) -> ModelSpec:
    """The model with so many rows that each of these sizes divides them; itself if they do already."""
    sizes = [size for size in tensor_parallel_sizes if size > 0]
    if all(model.vocab_size % size == 0 for size in sizes):
        return model
    return model.model_copy(update={"vocab_size": padded_vocabulary(model.vocab_size, lcm(*sizes))})


def padded_for(parts: Holder, tensor_parallel_size: int) -> Holder:
    """The parts with the model as a plan of this tensor-parallel size needs it."""
    model = padded_model(parts.model, [tensor_parallel_size])
    return parts if model is parts.model else parts.model_copy(update={"model": model})
