"""First weights, from a seed and the parameter's global name alone, so that every layout starts from the same model.

Beside them stand the table of rotary positions, which is no weight, and torch's types of parameters, by the names that
a configuration uses.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from conf.types.model_spec import ModelSpec, RotaryScaling
from conf.types.schema import ROTARY_BASE, Dtype

DTYPES: dict[Dtype, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


STANDARD_DEVIATION = 0.02
RESIDUAL_WEIGHTS = (
    "attention.projection.weight",
    "feed_forward.down.weight",
    "feed_forward.experts.down.weight",
    "feed_forward.shared.down.weight",
)


def initial_value(name: str, shape: torch.Size, num_layers: int, seed: int, device: torch.device) -> Tensor:
    """The whole parameter in fp32, the same on every rank of one kind of device (CPU and GPU draw differently).

    Normal weights with standard deviation 0.02, smaller by sqrt(2 num_layers) where they end a residual branch; norms
    start at one, biases at zero. Source: GPT-2 (Radford et al. 2019), section 2.3; taken for the Llama family too.
    """
    if name.endswith("norm.weight"):
        return torch.ones(shape, device=device)
    if name.endswith("bias"):
        return torch.zeros(shape, device=device)
    deviation = STANDARD_DEVIATION
    if name.endswith(RESIDUAL_WEIGHTS):
        deviation /= math.sqrt(2 * num_layers)
    # A generator of its own for each parameter: what a rank draws does not depend on which others it has drawn.
    generator = torch.Generator(device).manual_seed(_seed_of(name, seed))
    return torch.randn(shape, generator=generator, device=device).mul_(deviation)


def _seed_of(name: str, seed: int) -> int:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def fill(module: nn.Module, value_of: Callable[[str], Tensor], name: str = "") -> None:
    """Give every parameter that has no memory its value; a parameter that two modules share stays shared.

    Args:
        name: the module's name in its model.
    """
    # By the identity of the old parameter, so that modules that shared one share the new one.
    empty = [(leaf, old) for leaf, old in module.named_parameters(prefix=name) if old.is_meta]
    filled = {id(old): nn.Parameter(value_of(leaf)) for leaf, old in empty}
    for inner in module.modules():
        for leaf, parameter in list(inner.named_parameters(recurse=False, remove_duplicate=False)):
            if parameter.is_meta:
                setattr(inner, leaf, filled[id(parameter)])


def rotary_table_of(spec: ModelSpec, device: torch.device | None = None) -> Tensor | None:
    """Cosines and sines (2, s, d / 2) of every position, in fp32, for heads or parts of heads of size d.

    None where positions are learned; (4, s, d / 2) where layers with a window have positions of their own.
    """
    if spec.family == "gpt":
        return None
    table = rotary_table(spec.seq_length, rotary_frequencies(spec)).to(device)
    table = table if spec.rotary_scaling is None else table * spec.rotary_scaling.attention_factor
    if "local_rotary" not in spec.parts:
        return table
    local = spec.model_copy(update={"rotary_base": ROTARY_BASE, "rotary_scaling": None})
    return torch.cat((table, rotary_table(spec.seq_length, rotary_frequencies(local)).to(device)))


def rotary_frequencies(spec: ModelSpec) -> Tensor:
    """Radians a token (d/2), in fp32: base^(-2i/d), stretched where the model says so.

    Source: arXiv 2104.09864, equation 15.
    """
    latent = spec.latent_attention
    head_size = spec.query_size // spec.num_attention_heads if latent is None else latent.rotary_head_size
    base = spec.rotary_base or ROTARY_BASE
    frequencies = base ** (-torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
    if (scaling := spec.rotary_scaling) is None:
        return frequencies
    kept = (
        _kept_of_llama3(frequencies, scaling) if scaling.kind == "llama3" else _kept_of_yarn(base, head_size, scaling)
    )
    return torch.lerp(frequencies / scaling.factor, frequencies, kept.clamp(0, 1))


def _kept_of_llama3(frequencies: Tensor, scaling: RotaryScaling) -> Tensor:
    """How much of each frequency stays: by its turns in the length of pretraining, linearly between the bounds."""
    turns = frequencies * (scaling.original_max_position_embeddings / (2 * math.pi))
    between = max(scaling.high_freq_factor - scaling.low_freq_factor, 1e-9)  # 0 in Llama 4
    return (turns - scaling.low_freq_factor) / between


def _kept_of_yarn(base: float, head_size: int, scaling: RotaryScaling) -> Tensor:
    """The same, linear in the number of the frequency, between those that turn as often as the bounds say."""
    turns = (scaling.high_freq_factor, scaling.low_freq_factor)
    lengths = (scaling.original_max_position_embeddings / (2 * math.pi * each) for each in turns)
    first, last = (head_size * math.log(length) / (2 * math.log(base)) for length in lengths)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_size - 1)
    last += 1e-3 if first == last else 0
    return 1 - (torch.arange(head_size // 2, dtype=torch.float32) - first) / (last - first)


def rotary_table(seq_length: int, frequencies: Tensor) -> Tensor:
    """Cosines and sines (2, s, d/2) of position x frequency. Source: arXiv 2104.09864, equation 15."""
    angles = torch.arange(seq_length, dtype=torch.float32)[:, None] * frequencies
    return torch.stack((angles.cos(), angles.sin()))
