"""Every type of model that is understood, by small files whose parameters transformers 5.24 counts on meta devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conf.compose.model_from import expand_model_from, model_in
from conf.compose.model_types import model_types
from conf.errors import ConfigError, InfeasiblePlan
from conf.plan.setup import Setup
from conf.plan.trainer_limits import limits_of, require_runnable
from conf.types.model_spec import ModelSpec
from costs import estimate
from costs.counts.flops import attention_core_forward_flops
from costs.counts.parameters import attention_matrices, num_parameters
from costs.trainers import IMPLEMENTATIONS
from tests.composed import load
from tests.messages import refused

FILES: list[tuple[int, dict[str, Any]]] = json.loads(Path(__file__).with_name("model_files.json").read_text())
OF_OWN_TRAINER = {
    *(
        "gpt2",
        "llama",
        "mistral",
        "ministral",
        "ministral3",
        "mixtral",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "seed_oss",
        "phi3",
    ),
    *("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "dots1", "hunyuan_v1_dense", "ernie4_5", "granite", "granitemoe"),
    "granitemoeshared",
    *("gemma", "gemma2", "gemma3_text", "gemma3", "gpt_oss", "olmo2", "olmo3", "olmoe"),
}


def model_of(folder: Path, content: dict[str, Any]) -> ModelSpec:
    (folder / "config.json").write_text(json.dumps(content))
    return ModelSpec.model_validate(model_in(folder))


@pytest.mark.parametrize(
    ("parameters", "content"), FILES, ids=lambda value: value.get("model_type") if isinstance(value, dict) else ""
)
def test_all_parameters_of_every_type_are_counted(parameters: int, content: dict[str, Any], tmp_path: Path) -> None:
    assert num_parameters(model_of(tmp_path, content)) == parameters


def test_every_type_has_a_file_here() -> None:
    of_text = {name for name, kind in model_types().items() if kind.text is None}
    assert of_text - {content["model_type"] for _, content in FILES} == {"kimi_k2"}  # which is deepseek_v3's


def test_what_this_packages_trainer_lacks_is_refused_for_it(tmp_path: Path) -> None:
    keys = [limit.of for limit in limits_of("trisweep")]
    assert {"model.further_parts", "model.narrow_window", "model.linear_attention"} <= {*keys}
    models = {content["model_type"]: model_of(tmp_path, content) for _, content in reversed(FILES)}
    plain = {name for name, model in models.items() if not model.further_parts and model.linear_attention is None}
    assert plain - OF_OWN_TRAINER == set()
    assert {"ernie4_5_moe", "exaone4", "glm4_moe", "qwen3_next", "apertus"} & plain == set()


@pytest.mark.parametrize(
    ("outer", "inner"),
    [("mistral3", "mistral"), ("gemma3", "gemma3_text"), ("llama4", "llama4_text"), ("kimi_k25", "kimi_k2")],
)
def test_the_part_that_reads_text_is_priced_and_the_rest_is_told(outer: str, inner: str, tmp_path: Path) -> None:
    kind = "deepseek_v3" if inner == "kimi_k2" else inner
    parameters, content = next((number, file) for number, file in FILES if file["model_type"] == kind)
    text = {**content, "model_type": inner}
    whole = {"model_type": outer, "text_config": text, "vision_config": {"depth": 2}}
    found = model_of(tmp_path, whole)
    assert num_parameters(found) == parameters
    assert "vision_config" in (found.left_out or "")
    with refused(ConfigError, "model_from"):
        model_of(tmp_path, {"model_type": outer})
    with refused(ConfigError, "model_from"):
        model_of(tmp_path, {**whole, "text_config": {**text, "nobody_knows": 3}})


def test_another_type_is_refused_with_the_one_that_may_be_meant(tmp_path: Path) -> None:
    with refused(ConfigError, "model_from"):
        model_of(tmp_path, {"model_type": "gptoss"})


def test_layers_with_linear_attention_cost_their_products_and_not_the_square(tmp_path: Path) -> None:
    _, content = next((number, file) for number, file in FILES if file["model_type"] == "qwen3_next")
    model = model_of(tmp_path, content)
    assert (model.num_full_layers, model.num_layers) == (1, 6)
    long = model.model_copy(update={"seq_length": 65536})
    longer = model.model_copy(update={"seq_length": 131072})
    square = 2 * 65536**2 * (model.query_size + model.attended_size)
    assert attention_core_forward_flops(long, 1) == pytest.approx(square / 6, rel=0.05)
    assert attention_core_forward_flops(longer, 1) / attention_core_forward_flops(long, 1) == pytest.approx(4, rel=0.05)
    # A mean layer: queries with their gate, keys and values of one layer in six, and of five the linear ones.
    assert attention_matrices(model)[0].columns == (2 * 160 + 2 * 40 + 5 * 2 * (2 * 8 + 4 * 12 + 4)) // 6


def test_a_rhythm_of_layers_is_read_from_their_list(tmp_path: Path) -> None:
    _, content = next((number, file) for number, file in FILES if file["model_type"] == "gemma3_text")
    for every, share in ((2, 3 / 6), (3, 2 / 6), (4, 1 / 6)):
        types = ["full_attention" if index % every == 0 else "sliding_attention" for index in range(1, 7)]
        model = model_of(tmp_path, {**content, "layer_types": types})
        assert model.attention_window is not None
        assert model.attention_window.full_every == every
        assert model.num_full_layers / 6 == share
    plain = model_of(tmp_path, {**content, "layer_types": ["full_attention"] * 6})
    assert plain.attention_window is None


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("apertus", "model.parts"),
        ("qwen3_next", "model.linear_attention"),
        ("cohere2", "model.parts"),
        ("gptj", "model.parts"),
    ],
)
def test_types_that_nothing_here_trains_are_priced_at_megatrons_costs(kind: str, key: str, tmp_path: Path) -> None:
    _, content = next((number, file) for number, file in FILES if file["model_type"] == kind)
    model_of(tmp_path, content)
    stated = ("cluster=dgx-h100", "precision=bf16", "batch.global_batch_size=8", "parallel.world_size=8")
    settings = load([*expand_model_from([f"model_from={tmp_path}"]).texts, *stated])
    setup = Setup.model_validate(settings.model_dump(include={*Setup.model_fields}))
    assert estimate(setup, IMPLEMENTATIONS["megatron-core"]).step_seconds > 0
    with refused(InfeasiblePlan, key):
        require_runnable(setup, "trisweep", limits_of("trisweep"))
