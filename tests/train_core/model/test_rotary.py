"""The frequencies of rotary positions, against those of `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conf.compose.model_from import expand_model_from
from conf.errors import ConfigError
from conf.types.model_spec import ModelSpec
from tests.composed import load
from tests.messages import refused
from train_core.model.initialize import rotary_frequencies


def of_transformers(spec: ModelSpec) -> Tensor:
    import transformers
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    assert spec.rotary_scaling
    rope = {"rope_type": "llama3", "rope_theta": spec.rotary_base, **spec.rotary_scaling.model_dump()}
    config: Any = transformers.LlamaConfig(
        hidden_size=spec.hidden_size,
        num_attention_heads=spec.num_attention_heads,
        max_position_embeddings=131072,
        rope_parameters=rope,
    )
    return LlamaRotaryEmbedding(config).inv_freq


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"])
def test_llama_3_1_turns_as_in_transformers(name: str) -> None:
    spec = load([f"model={name}"]).model
    torch.testing.assert_close(rotary_frequencies(spec), of_transformers(spec), rtol=2e-6, atol=0)


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize(
    "said", [{}, {"mscale": 1.0, "mscale_all_dim": 0.7}, {"attention_factor": 1.5}, {"beta_fast": 8}]
)
def test_yarn_is_read_and_turns_as_in_transformers(said: dict[str, float], truncate: bool, tmp_path: Path) -> None:
    import transformers
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rope = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 32.0, "original_max_position_embeddings": 4096}
    rope |= said | {"truncate": truncate}
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64}
    config: Any = transformers.LlamaConfig(**sizes, max_position_embeddings=131072, rope_parameters=rope)
    config.save_pretrained(tmp_path)
    spec = load(expand_model_from([f"model_from={tmp_path}"]).texts).model
    assert spec.rotary_scaling
    theirs = LlamaRotaryEmbedding(config)
    torch.testing.assert_close(rotary_frequencies(spec), theirs.inv_freq, rtol=2e-6, atol=0)
    assert spec.rotary_scaling.attention_factor == pytest.approx(theirs.attention_scaling)


def test_fast_turns_stay_and_slow_ones_are_divided() -> None:
    spec = load(["model=llama-3.1-8b"]).model
    plain = rotary_frequencies(spec.model_copy(update={"rotary_scaling": None}))
    ratio = plain / rotary_frequencies(spec)
    turns = plain * 8192 / (2 * torch.pi)
    assert torch.equal(ratio[turns > 4], torch.ones_like(ratio[turns > 4]))
    torch.testing.assert_close(ratio[turns < 1], torch.full_like(ratio[turns < 1], 8.0))
    blended = ratio[(turns > 1) & (turns < 4)]
    assert len(blended) > 3
    assert ((blended > 1) & (blended < 8)).all()


def test_bounds_that_are_one_leave_nothing_between_as_in_llama_4() -> None:
    texts = ["model=llama-3.1-8b", "model.rotary_scaling.high_freq_factor=1.0"]
    spec = load(texts).model
    ratio = rotary_frequencies(spec.model_copy(update={"rotary_scaling": None})) / rotary_frequencies(spec)
    assert (((ratio - 1).abs() < 1e-5) | ((ratio - 8).abs() < 1e-5)).all()


@pytest.mark.slow
def test_scaling_that_cannot_be_is_refused() -> None:
    with refused(ConfigError, "model.rotary_scaling"):
        load(["model=llama-3.1-8b", "model.family=gpt"])
    with refused(ConfigError, "model.rotary_scaling.high_freq_factor"):
        load(["model=llama-3.1-8b", "model.rotary_scaling.high_freq_factor=0.5"])
    with refused(ConfigError, "model.rotary_scaling.factor"):
        load(["model=llama-3.1-8b", "model.rotary_scaling.factor=0.5"])


def test_other_rotary_positions_of_some_layers_need_rotary_positions() -> None:
    with refused(ConfigError, "model.parts"):
        load(["model=gpt-22b", "model.attention_window={size: 64, full_every: 2}", "model.parts=[local_rotary]"])
