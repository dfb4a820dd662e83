"""Ways to spread experts that cannot exist, and what the errors propose."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError, InfeasiblePlan
from conf.plan.setup import Setup
from tests.composed import setup_of
from tests.messages import refused


def setup(*overrides: str, model: str = "mixtral-8x7b") -> Setup:
    """On four nodes, whatever this package's own trainer can run."""
    sizes = ["parallel.world_size=32", "parallel.tensor_parallel_size=2", "batch.global_batch_size=128"]
    return setup_of([f"model={model}", "cluster=dgx-h100", "precision=bf16", *sizes, *overrides])


def test_experts_may_be_spread_over_tensor_and_data_ranks_alike() -> None:
    spread = setup(
        "parallel.expert_parallel_size=8",
        "parallel.expert_tensor_parallel_size=1",
        "parallel.sequence_parallel=true",
        "parallel.pipeline_parallel_size=4",
    )
    assert spread.data_parallel_size == 4


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["parallel.expert_parallel_size=3"], "parallel.expert_parallel_size"),
        (["parallel.expert_tensor_parallel_size=3"], "parallel.expert_tensor_parallel_size"),
        (
            ["parallel.expert_parallel_size=8", "parallel.pipeline_parallel_size=4", "parallel.sequence_parallel=true"],
            "parallel.expert_parallel_size",
        ),
        (["parallel.expert_parallel_size=2"], "parallel.expert_parallel_size"),
    ],
)
def test_unequal_shares_are_refused(overrides: list[str], key: str) -> None:
    with refused(InfeasiblePlan, key):
        setup(*overrides)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("parallel.expert_parallel_size=2", "parallel.expert_parallel_size"),
        ("parallel.expert_tensor_parallel_size=2", "parallel.expert_tensor_parallel_size"),
    ],
)
def test_a_model_without_experts_cannot_spread_them(override: str, key: str) -> None:
    with refused(InfeasiblePlan, key):
        setup(override, model="llama-2-7b")


@pytest.mark.parametrize(
    ("model", "override", "key"),
    [
        ("mixtral-8x7b", "model.experts.top_k=9", "model.experts.top_k"),
        ("mixtral-8x7b", "model.experts.num_dense_layers=32", "model.experts.num_dense_layers"),
        ("deepseek-v3", "model.family=gpt", "model.family"),
        ("deepseek-v3", "model.num_query_groups=8", "model.num_query_groups"),
        ("deepseek-v3", "model.latent_attention.rotary_head_size=192", "model.latent_attention.rotary_head_size"),
    ],
)
def test_impossible_models_are_refused(model: str, override: str, key: str) -> None:
    with refused(ConfigError, key):
        setup(override, model=model)


@pytest.mark.parametrize(("experts", "tensor", "can_be"), [(2, 1, True), (8, 1, False), (1, 2, True), (8, 2, False)])
def test_stages_of_one_replica_are_neighbours_only_where_its_experts_fill_a_stage(
    experts: int, tensor: int, can_be: bool
) -> None:
    """Two tensor ranks make a stage of one replica."""
    overrides = [
        "parallel.pipeline_before_data=true",
        "parallel.pipeline_parallel_size=2",
        "parallel.sequence_parallel=true",
        f"parallel.expert_parallel_size={experts}",
        f"parallel.expert_tensor_parallel_size={tensor}",
    ]
    if can_be:
        assert setup(*overrides).parallel.pipeline_before_data
        return
    with refused(InfeasiblePlan, "parallel.pipeline_before_data"):
        setup(*overrides)
