"""A checkpoint is of this model only when the same weights mean the same thing; what has no meaning may differ."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from conf.errors import ConfigError
from conf.types.model_spec import ModelSpec
from tests.composed import load
from tests.messages import refused
from train_core.checkpoints.what_to_read import require_same_shapes, require_same_spec

AT = Path("checkpoints/step-000007")


class Named(NamedTuple):
    """A model by the overrides that compose it, which takes too long for every worker that collects tests."""

    overrides: tuple[str, ...]

    def spec(self) -> ModelSpec:
        return load(self.overrides).model


def tiny(*overrides: str) -> Named:
    return Named(("model=tiny", *overrides))


def llama(*overrides: str) -> Named:
    return Named(("model=llama-3.1-8b", *overrides))


@pytest.mark.parametrize(
    ("saved", "wanted"),
    [
        (tiny(), tiny("model.name=other")),
        (tiny("model.num_attention_heads=8"), tiny("model.num_attention_heads=8", "model.head_size=4")),
        (llama("model.seq_length=4096"), llama("model.seq_length=8192")),
        (llama("model.rotary_base=null"), llama("model.rotary_base=10000.0")),
    ],
)
def test_what_changes_no_result_may_differ(saved: Named, wanted: Named) -> None:
    require_same_spec(AT, saved.spec(), wanted.spec())


EXPERTS = ("model=mixtral-8x7b", "model.experts.balance_loss=0.01")


@pytest.mark.parametrize(
    "change", ["balance_loss=0.0", "balance_bias=0.001", "capacity_factor=1.25", "imbalance=1.2"], ids=str
)
def test_what_experts_are_trained_or_priced_by_may_differ(change: str) -> None:
    require_same_spec(AT, Named(EXPERTS).spec(), Named((*EXPERTS, f"model.experts.{change}")).spec())


def test_biases_of_routers_are_not_dropped() -> None:
    saved, wanted = Named((*EXPERTS, "model.experts.balance_bias=0.001")), Named(EXPERTS)
    with refused(ConfigError, "model.experts.balance_bias"):
        require_same_spec(AT, saved.spec(), wanted.spec())


@pytest.mark.parametrize(
    ("saved", "wanted", "told"),
    [
        (
            llama(),
            llama("model.num_attention_heads=64", "model.head_size=64"),
            "model.num_attention_heads = 64: is not the 32 of the model in the checkpoint checkpoints/step-000007."
            " Use model.num_attention_heads=32 model.head_size=128,"
            " or name a checkpoint of this model as checkpoint.load.",
        ),
        (llama(), llama("model.num_query_groups=16"), "model.num_query_groups = 16: is not the 8 of"),
        (llama(), llama("model.rotary_base=10000.0"), "model.rotary_base = 10000.0: is not the 500000.0 of"),
        (llama(), llama("model.rotary_scaling=null"), "model.rotary_scaling = None: is not the {"),
        (llama(), llama("model.gated_mlp=false"), "model.gated_mlp = False: is not the true of"),
        (tiny(), tiny("model.seq_length=48"), "model.seq_length = 48: is not the"),
        (Named(EXPERTS), Named((*EXPERTS, "model.experts.top_k=1")), "model.experts.top_k = 1: is not the 2 of"),
        (tiny(), llama(), "model.family = 'llama': is not the gpt of"),
        (llama(), tiny(), "model.family = 'gpt': is not the llama of"),
    ],
)
def test_what_shapes_need_not_tell_is_refused_by_name(saved: Named, wanted: Named, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        require_same_spec(AT, saved.spec(), wanted.spec())
    assert str(caught.value).startswith(told), str(caught.value)


def test_tensors_that_differ_are_refused_by_name() -> None:
    with refused(ConfigError, "checkpoint.load"):
        require_same_shapes(AT, {}, tiny("model.seq_length=64").spec())
