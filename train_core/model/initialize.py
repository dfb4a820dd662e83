"""First weights, from a seed and the parameter's global name alone, so that every layout starts from the same model.

Beside them stand torch's types of parameters, by the names that a configuration uses.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from conf.types.schema import Dtype

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
