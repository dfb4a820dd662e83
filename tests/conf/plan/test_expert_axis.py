"""Ways to spread experts that cannot exist, and what the errors propose."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError, InfeasiblePlan
from conf.plan.setup import Setup
from tests.composed import setup_of


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
    ("overrides", "message"),
    [
        (
            ["parallel.expert_parallel_size=3"],
            r"parallel\.expert_parallel_size = 3: does not divide model\.experts\.num_experts = 8\. Use .*_size=2",
        ),
        (
            ["parallel.expert_tensor_parallel_size=3"],
            r"parallel\.expert_tensor_parallel_size = 3: does not divide model\.experts\.ffn_hidden_size = 14336\."
            r" Use parallel\.expert_tensor_parallel_size=2",
        ),
        (
            ["parallel.expert_parallel_size=8", "parallel.pipeline_parallel_size=4", "parallel.sequence_parallel=true"],
            r"expert_parallel_size = 8: does not go into the 8 ranks of a stage .*= 2: 8 x 2 = 16\. Choose sizes whose",
        ),
        (
            ["parallel.expert_parallel_size=2"],
            r"expert_parallel_size = 2: would send every token 2 times.*Set parallel\.sequence_parallel=true",
        ),
    ],
)
def test_unequal_shares_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(InfeasiblePlan, match=message):
        setup(*overrides)


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("parallel.expert_parallel_size=2", r"Set parallel\.expert_parallel_size=1"),
        ("parallel.expert_tensor_parallel_size=2", r"Set parallel\.expert_tensor_parallel_size=null"),
    ],
)
def test_a_model_without_experts_cannot_spread_them(override: str, remedy: str) -> None:
    with pytest.raises(InfeasiblePlan, match=rf"= 2: spreads experts, and llama-2-7b has none\. {remedy}"):
        setup(override, model="llama-2-7b")


@pytest.mark.parametrize(
    ("model", "override", "message"),
    [
        ("mixtral-8x7b", "model.experts.top_k=9", r"model\.experts\.top_k = 9: is more than .*num_experts = 8"),
        (
            "mixtral-8x7b",
            "model.experts.num_dense_layers=32",
            r"num_dense_layers = 32: leaves none of model\.num_layers",
        ),
        ("deepseek-v3", "model.family=gpt", r"model\.family = 'gpt': has learned positions.* Use model\.family=llama"),
        (
            "deepseek-v3",
            "model.num_query_groups=8",
            r"num_query_groups = 8: differs .* Use model\.num_query_groups=128",
        ),
        ("deepseek-v3", "model.latent_attention.rotary_head_size=192", r"rotary_head_size = 192: leaves nothing"),
    ],
)
def test_impossible_models_are_refused(model: str, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
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
    message = rf"pipeline_before_data = True: needs experts on all 2 ranks .* they are on {experts * tensor}\. Set"
    with pytest.raises(InfeasiblePlan, match=message):
        setup(*overrides)
