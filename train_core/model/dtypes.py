"""Torch's types, by the names that a configuration uses."""

from __future__ import annotations

import torch

from conf.types.schema import Dtype

DTYPES: dict[Dtype, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
