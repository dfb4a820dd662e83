"""What each trainer says it can run, held against what is refused elsewhere."""

from __future__ import annotations

import pytest

from conf.errors import InfeasiblePlan
from conf.setup import Setup
from tests.composed import load
from train_core.costs import IMPLEMENTATIONS
from train_core.costs.trainers.capabilities import require_runnable
from train_core.costs.trainers.declared_limits import CAPABILITIES

OWN_REFUSALS: dict[str, int | bool | str] = {
    "parallel.context_parallel_size": 2,
    "parallel.expert_parallel_size": 2,
    "parallel.expert_tensor_parallel_size": 1,
    "parallel.zero_group_size": 2,
    "parallel.offload_optimizer": True,
    "parallel.pipeline_before_data": True,
    "precision.matmul_recipe": "mxfp8",
}
JOB = (
    "model=gpt-22b",
    "cluster=gb200-nvl72",
    "precision=bf16",
    "parallel.world_size=64",
    "batch.global_batch_size=512",
)
PIPELINE = ("parallel.tensor_parallel_size=2", "parallel.pipeline_parallel_size=4", "parallel.sequence_parallel=true")


def setup_of(*overrides: str) -> Setup:
    parts = load([*JOB, *overrides])
    return Setup(**{name: getattr(parts, name) for name in Setup.model_fields})


def refusal(trainer: str, *overrides: str) -> str:
    with pytest.raises(InfeasiblePlan) as caught:
        require_runnable(setup_of(*overrides), trainer, CAPABILITIES[trainer])
    return str(caught.value)


def test_every_trainer_says_what_it_can_run() -> None:
    assert CAPABILITIES.keys() == IMPLEMENTATIONS.keys()


@pytest.mark.parametrize("key", sorted(OWN_REFUSALS))
def test_what_our_own_trainer_refuses_to_run_it_also_refuses_to_price(key: str) -> None:
    value = OWN_REFUSALS[key]
    assert not CAPABILITIES["trisweep"].allows(key, value)
    shown = str(value).lower() if isinstance(value, bool) else value
    # A model without experts has none to spread, whatever the trainer.
    with pytest.raises(InfeasiblePlan, match=r"own trainer|spreads experts, and gpt-22b has none"):
        load([*JOB, f"{key}={shown}"]).experiment()


def test_fsdp_has_no_pipelines_and_torchtitan_has() -> None:
    assert "parallel.pipeline_parallel_size = 4: is not run by fsdp" in refusal("fsdp", PIPELINE[1])
    require_runnable(setup_of(*PIPELINE), "torchtitan", CAPABILITIES["torchtitan"])


def test_a_refusal_says_what_to_use_instead() -> None:
    message = refusal("megatron-deepspeed", "parallel.pipeline_parallel_size=4", "parallel.schedule=zero-bubble")
    assert "parallel.schedule = 'zero-bubble': is not run by megatron-deepspeed" in message
    assert "Use parallel.schedule=1f1b, or choose another trainer." in message


def test_some_limits_hold_only_beside_a_pipeline_or_tensor_ranks() -> None:
    core, titan = CAPABILITIES["megatron-core"], CAPABILITIES["torchtitan"]
    assert core.allows("zero_stage", 3)
    assert not core.allows("zero_stage", 3, pipeline=True)
    assert titan.allows("sequence_parallel", False)
    assert not titan.allows("sequence_parallel", False, tensor=True)


def test_delayed_scaling_does_not_go_with_pointwise_recomputation_in_megatron_core() -> None:
    again = "parallel.recompute=pointwise"
    message = refusal("megatron-core", again, "precision.matmul_recipe=fp8-delayed")
    assert "parallel.recompute = 'pointwise': is not run by megatron-core: with delayed scaling" in message
    require_runnable(setup_of(again, "precision.matmul_recipe=mxfp8"), "megatron-core", CAPABILITIES["megatron-core"])
    require_runnable(setup_of(again), "megatron-core", CAPABILITIES["megatron-core"])
    core = CAPABILITIES["megatron-core"]
    assert not core.allows("recompute", "pointwise", recipe="fp8-delayed")
    assert core.allows("recompute", "full", recipe="fp8-delayed")


def test_stages_of_unequal_layers_are_named_by_their_layers() -> None:
    stages = ("parallel.pipeline_parallel_size=2", "parallel.layers_per_stage=[23,25]")
    assert "parallel.layers_per_stage = [23, 25]: is not run by megatron-lm" in refusal("megatron-lm", *stages)
    require_runnable(setup_of(*stages), "torchtitan", CAPABILITIES["torchtitan"])


def test_what_no_limit_names_is_allowed() -> None:
    assert CAPABILITIES["megatron-core"].allows("context_parallel_size", 8)
    assert CAPABILITIES["trisweep"].allows("schedule", "zero-bubble", pipeline=True)
