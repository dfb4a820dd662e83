"""What a config.json beside Hugging Face weights says that the shapes of tensors do not: heads, positions, norms."""

from __future__ import annotations

import logging
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from conf.errors import ConfigError
from conf.schema import ROTARY_BASE
from conf.world import ModelSpec
from train_core.checkpoints.checkpoint_folder import KEY
from train_core.model.transformer import NORM_EPSILON

LOGGER = logging.getLogger(__name__)


class RopeParameters(BaseModel):
    """How rotary positions turn: `rope_parameters`, or `rope_scaling` in older files, which call the type `type`."""

    model_config = ConfigDict(strict=True)

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None


class HuggingFaceConfig(BaseModel):
    """The keys that are looked at, of both families; None where the file does not say."""

    model_config = ConfigDict(strict=True)

    n_head: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    tie_word_embeddings: bool | None = None
    layer_norm_epsilon: float | None = None
    rms_norm_eps: float | None = None
    rope_theta: float | None = None
    rope_parameters: RopeParameters | None = None
    rope_scaling: RopeParameters | None = None


def require_config(folder: Path, spec: ModelSpec) -> None:
    """Where a config.json lies in the folder, it must mean the same heads and positions; nothing has to lie there.

    Raises:
        ConfigError: it means something else, or cannot be read.
    """
    path = folder / "config.json"
    if not path.exists():
        return
    try:
        config = HuggingFaceConfig.model_validate_json(path.read_bytes())
    except OSError as error:
        raise _refusal(path, f"config.json cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _refusal(path, f"config.json: {f'{where}: ' if where else ''}{first['msg']}") from None
    _require_heads(config, path, spec)
    _require_positions(config, path, spec)
    given = (config.rms_norm_eps, config.layer_norm_epsilon, NORM_EPSILON)
    epsilon = next(value for value in given if value is not None)
    if epsilon != NORM_EPSILON:
        LOGGER.warning("%s was trained with epsilon %g in its norms; this trainer uses %g", path, epsilon, NORM_EPSILON)


def _refusal(path: Path, problem: str) -> ConfigError:
    return ConfigError(KEY, str(path.parent), problem, "Correct that file, or move it away.")


def _require_heads(config: HuggingFaceConfig, path: Path, spec: ModelSpec) -> None:
    """Heads must be the same, which the shapes of tensors do not tell: 4 heads of 8 are as wide as 2 of 16."""
    keys = {
        "num_attention_heads": "n_head" if spec.family == "gpt" else "num_attention_heads",
        "num_query_groups": "num_key_value_heads",
        "tied_embeddings": "tie_word_embeddings",
    }
    for ours, theirs in keys.items():
        value, there = getattr(spec, ours), getattr(config, theirs)
        if there is not None and there != value:
            problem = f"is not the {str(there).lower()} that {path} names as {theirs}"
            raise ConfigError(f"model.{ours}", value, problem, f"Use model.{ours}={str(there).lower()}.")


def _require_positions(config: HuggingFaceConfig, path: Path, spec: ModelSpec) -> None:
    rotary = config.rope_parameters or config.rope_scaling or RopeParameters()
    base, ours = config.rope_theta or rotary.rope_theta or ROTARY_BASE, spec.rotary_base or ROTARY_BASE
    if spec.family == "llama" and base != ours:
        problem = f"is not the {base:g} that {path} names as rope_theta"
        raise ConfigError("model.rotary_base", ours, problem, f"Use model.rotary_base={float(base)}.")
    if (rotary.rope_type or rotary.type or "default") != "default":
        LOGGER.warning("%s scales its rotary positions for longer sequences; this trainer does not", path)
