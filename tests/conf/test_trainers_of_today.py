"""What trainers of today are told of context ranks, experts, narrow products and the rest, or refuse."""

from __future__ import annotations

import pytest

from conf.errors import InfeasiblePlan
from conf.plan.trainer_call import JOB_NAMES, call_of
from tests.composed import load
from tests.messages import refused

JOB = ("cluster=gb200-nvl72", "precision=bf16", "parallel.world_size=16", "batch.global_batch_size=64", "model=gpt-22b")
SHARED_EXPERT = "{num_experts:8,top_k:2,ffn_hidden_size:1024,shared_ffn_hidden_size:1024}"

SHARED_STATE = {"--use-distributed-optimizer": "", "--overlap-param-gather": ""}


@pytest.mark.parametrize("model", ["deepseek-v3", "gpt-22b"])
def test_only_latent_attention_has_norms_of_queries_and_keys_that_no_model_key_asks_for(model: str) -> None:
    chosen = words(f"model={model}", "cluster.num_nodes=64", "parallel.tensor_parallel_size=4")
    assert ("--qk-layernorm" in chosen) == ("--multi-latent-attention" in chosen) == (model == "deepseek-v3")


def flags(*overrides: str) -> dict[str, str]:
    """The flags that Megatron-LM gets and a plan without these overrides does not, with their values."""
    plain, chosen = words(), words(*overrides)
    return {name: value for name, value in chosen.items() if plain.get(name) != value}


def words(*overrides: str, trainer: str = "megatron-lm") -> dict[str, str]:
    experiment = load([*JOB, f"trainer={trainer}", *overrides]).experiment()
    found = call_of(experiment.trainer, experiment, dict.fromkeys(JOB_NAMES, "x")).words
    starts = [index for index, word in enumerate(found) if word.startswith("--")]
    ends = [*starts[1:], len(found)]
    return {found[start]: " ".join(found[start + 1 : end]) for start, end in zip(starts, ends, strict=True)}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["parallel.context_parallel_size=2"], {"--context-parallel-size": "2"}),
        (["parallel.pipeline_before_data=true"], {"--use-tp-pp-dp-mapping": ""}),
        (
            ["parallel.offload_optimizer=true", "parallel.zero_stage=1"],
            {**SHARED_STATE, "--optimizer-cpu-offload": "", "--use-precision-aware-optimizer": ""},
        ),
        (
            ["parallel.zero_stage=1", "parallel.zero_group_size=4"],
            {**SHARED_STATE, "--num-distributed-optimizer-instances": "4"},
        ),
        (["precision=mxfp8"], {"--fp8-format": "e4m3", "--fp8-recipe": "mxfp8"}),
        (["precision=fp8"], {"--fp8-format": "hybrid", "--fp8-recipe": "tensorwise"}),
        (
            ["precision=fp8", "parallel.zero_stage=1"],
            {
                **SHARED_STATE,
                **{"--fp8-format": "hybrid", "--fp8-recipe": "tensorwise", "--fp8-param-gather": ""},
            },
        ),
        (["precision=nvfp4"], {"--fp4-format": "e2m1", "--fp4-recipe": "nvfp4"}),
    ],
)
def test_megatron_is_told_by_flags_of_its_own(overrides: list[str], expected: dict[str, str]) -> None:
    assert flags(*overrides) == expected


@pytest.mark.slow
def test_megatron_is_told_of_experts() -> None:
    experts = "{num_experts:8,top_k:2,ffn_hidden_size:1024,num_dense_layers:1}"
    told = flags(f"+model.experts={experts}", "parallel.expert_parallel_size=4")
    assert told["--num-experts"] == "8"
    assert told["--moe-layer-freq"] == "([0]*1+[1]*47)"
    assert told["--expert-model-parallel-size"] == "4"


def test_megatron_makes_norms_and_the_activation_of_experts_again_by_its_modules() -> None:
    experts = "{num_experts:8,top_k:2,ffn_hidden_size:1024}"
    told = flags(f"+model.experts={experts}", "parallel.recompute=pointwise")
    assert (told["--recompute-granularity"], told["--recompute-modules"]) == ("selective", "layernorm moe_act")


@pytest.mark.parametrize(
    "experts", [None, "{num_experts:8,top_k:2,ffn_hidden_size:1024,num_dense_layers:1}", SHARED_EXPERT]
)
def test_megatron_does_not_make_the_activation_of_other_layers_again(experts: str | None) -> None:
    overrides = [] if experts is None else [f"+model.experts={experts}"]
    with refused(InfeasiblePlan, "parallel.recompute"):
        words(*overrides, "parallel.recompute=pointwise")


@pytest.mark.parametrize(
    ("plan", "degrees"),
    [
        (["parallel.zero_stage=0"], (16, 1)),
        (["parallel.zero_stage=3"], (1, 16)),
        (["parallel.zero_stage=3", "parallel.zero_group_size=4"], (4, 4)),
        (["parallel.zero_stage=2", "parallel.zero_group_size=4", "parallel.pipeline_parallel_size=2"], (2, 4)),
        (["parallel.zero_stage=2", "parallel.zero_group_size=4", "parallel.context_parallel_size=4"], (4, 1)),
        (["parallel.zero_stage=3", "parallel.zero_group_size=8", "parallel.context_parallel_size=2"], (2, 4)),
    ],
)
def test_torchtitan_shards_among_groups_of_replicas(plan: list[str], degrees: tuple[int, int]) -> None:
    """By its mesh of v0.2.2 (distributed/parallel_dims.py), whose dimension `fsdp` is of shards and context ranks."""
    told = words("model=llama-3.1-8b", *plan, trainer="torchtitan")
    prefix = "--parallelism.data_parallel"
    assert (told[f"{prefix}_replicate_degree"], told[f"{prefix}_shard_degree"]) == tuple(map(str, degrees))


@pytest.mark.parametrize("trainer", ["torchtitan", "deepspeed"])
@pytest.mark.parametrize(
    "override",
    [
        "parallel.zero_group_size=1",
        "parallel.offload_optimizer=true",
        "parallel.pipeline_before_data=true",
        "precision.matmul_recipe=mxfp8",
    ],
)
def test_what_a_file_does_not_pass_on_it_refuses(trainer: str, override: str) -> None:
    model = ["model=llama-3.1-8b"] if trainer == "torchtitan" else []
    with refused(InfeasiblePlan, override.split("=")[0]):
        load([*JOB, *model, f"trainer={trainer}", override]).experiment()


def test_scales_of_rows_are_not_transformer_engines() -> None:
    with refused(InfeasiblePlan, "precision.matmul_recipe"):
        words("precision.matmul_recipe=fp8-rowwise")
