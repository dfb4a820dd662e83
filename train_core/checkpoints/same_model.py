"""A check that a checkpoint holds a model's weights: by what its facts say first, then by the shapes of its tensors.

Shapes alone do not tell. Four heads of 8 are as wide as eight of 4, and no tensor knows the base of rotary positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from conf.errors import ConfigError
from conf.model_spec import ModelSpec
from conf.overrides import for_a_shell, written
from conf.schema import ROTARY_BASE
from train_core.checkpoints.checkpoint_folder import KEY
from train_core.model.transformer import Transformer


def require_same_spec(checkpoint: Path, saved: ModelSpec, model: ModelSpec) -> None:
    """Raises ConfigError where the checkpoint's model computes something else from the same weights."""
    has, wanted = _meaning(saved), _meaning(model)
    differing = [key for key in wanted if key in has and has[key] != wanted[key]]
    if not differing:
        return
    first = differing[0]
    problem = f"is not the {written(has[first])} of the model in the checkpoint {checkpoint}"
    same = " ".join(for_a_shell(f"model.{key}", has[key]) for key in differing)
    remedy = f"Use {same}, or name a checkpoint of this model as {KEY}."
    raise ConfigError(f"model.{first}", wanted[first], problem, remedy)


def _meaning(model: ModelSpec) -> dict[str, Any]:
    """The values that decide what the model computes; a null is the value that it stands for."""
    values = model.model_dump(exclude={"name"}) | {"head_size": model.query_size // model.num_attention_heads}
    if model.family == "gpt":
        return values | {"rotary_base": None}  # learned positions do not turn
    # Rotary positions have no weights, so that the same ones serve sequences of any length.
    del values["seq_length"]
    return values | {"rotary_base": model.rotary_base or ROTARY_BASE}


def require_same_shapes(checkpoint: Path, saved: Mapping[str, tuple[int, ...]], model: ModelSpec) -> None:
    """Raises ConfigError where the checkpoint's weights are not those of the model; `saved` are shapes by name."""
    with torch.device("meta"):
        wanted = {name: tuple(parameter.shape) for name, parameter in Transformer(model).named_parameters()}
    for name in sorted({*saved, *wanted}):
        if saved.get(name) != wanted.get(name):
            has, wants = saved.get(name, "nothing"), wanted.get(name, "nothing")
            problem = f"belongs to another model: of {name} it holds {has}, and model={model.name} has {wants}"
            raise ConfigError(KEY, str(checkpoint), problem, "Name a checkpoint of this model, or change model.*.")
