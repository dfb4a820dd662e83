"""The speed of rotary positions: one frequency for each pair of a head's elements."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conf.model_spec import ModelSpec, RotaryScaling
from conf.schema import ROTARY_BASE


def rotary_frequencies(spec: ModelSpec) -> Tensor:
    """Radians a token (d/2), in fp32: base^(-2i/d), stretched where the model says so.

    Source: arXiv 2104.09864, equation 15.
    """
    head_size = spec.query_size // spec.num_attention_heads
    base = spec.rotary_base or ROTARY_BASE
    frequencies = base ** (-torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
    return frequencies if spec.rotary_scaling is None else _stretched(frequencies, spec.rotary_scaling)


def _stretched(frequencies: Tensor, scaling: RotaryScaling) -> Tensor:
    """Llama 3.1's frequencies. Source: transformers, modeling_rope_utils.py, _compute_llama3_parameters."""
    turns = frequencies * (scaling.original_max_position_embeddings / (2 * math.pi))
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return torch.lerp(frequencies / scaling.factor, frequencies, kept.clamp(0, 1))
