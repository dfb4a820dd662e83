"""What trainers cannot run: declared once, and refused alike by searches, by prices and by composed experiments."""

from __future__ import annotations

from typing import get_args

import pytest

from conf.errors import ConfigError, InfeasiblePlan
from conf.folders import options
from conf.plan.experiment import Experiment
from conf.plan.knobs import LAYOUT_KEYS
from conf.plan.trainer_limits import DERIVED_VALUES, LAYER_SPLIT, limits_of, require_runnable, runs
from conf.types.recompute import RECOMPUTES
from conf.types.trainer_spec import CostsOf
from sweeps.planner.choosing.choice import choose_plans
from sweeps.planner.choosing.objectives import Training
from sweeps.planner.request import search_request
from tests.composed import composed, load, setup_of
from tests.messages import refused

OWN_REFUSALS: dict[str, int | bool | str] = {
    "parallel.expert_tensor_parallel_size": 2,
    "parallel.expert_dispatcher": "deepep",
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
MIXTURE = ("model=qwen3-30b-a3b",)
AGAIN = "parallel.recompute=pointwise"

LLAMA = ("model=llama-3.1-8b", "cluster=dgx-h100", "precision=bf16", "parallel.world_size=16")
STAGES = ("parallel.pipeline_parallel_size=4",)
CHUNKS = (*STAGES, "parallel.schedule=interleaved", "parallel.virtual_pipeline_size=2")
PLANS = {
    "stages": STAGES,
    "lighter ends": (*STAGES, "parallel.layers_per_stage=[7,9,9,7]"),
    "a lighter last stage of two": ("parallel.pipeline_parallel_size=2", "parallel.layers_per_stage=[17,15]"),
    "chunks": CHUNKS,
    "unequal chunks": (*CHUNKS[:2], "parallel.virtual_pipeline_size=3"),
    "lighter ends in equal chunks": (*CHUNKS, "parallel.layers_per_stage=[6,10,10,6]"),
    "uneven groups": (*CHUNKS, "parallel.tensor_parallel_size=4", "batch.global_batch_size=18"),
    "a smaller last group": (*CHUNKS, "parallel.tensor_parallel_size=4", "batch.global_batch_size=19"),
    "zero bubble": (*STAGES, "parallel.schedule=zero-bubble"),
    "gpipe": (*STAGES, "parallel.schedule=gpipe", "batch.global_batch_size=32"),
    **{f"ZeRO-{stage}": ("parallel.tensor_parallel_size=4", f"parallel.zero_stage={stage}") for stage in range(4)},
    **{f"recompute {kind}": (f"parallel.recompute={kind}",) for kind in RECOMPUTES},
    "every second layer": ("parallel.recompute=full", "parallel.recompute_every=2"),
    "context ranks": ("parallel.context_parallel_size=2",),
    "groups of replicas": ("parallel.zero_stage=2", "parallel.zero_group_size=4"),
    "groups that hold all of their context ranks": (
        *("parallel.zero_stage=2", "parallel.zero_group_size=4", "parallel.context_parallel_size=4"),
    ),
    "groups that do not": ("parallel.zero_stage=2", "parallel.zero_group_size=4", "parallel.context_parallel_size=8"),
    "offloading": ("parallel.offload_optimizer=true", "parallel.zero_stage=0"),
    "offloading beside ZeRO-1": ("parallel.offload_optimizer=true", "parallel.zero_stage=1"),
    "offloaded activations": ("parallel.offload_activations=true",),
    "few micro-batches": ("parallel.pipeline_parallel_size=16", "batch.micro_batch_size=8"),
    "few micro-batches in chunks": (
        *("parallel.pipeline_parallel_size=8", "batch.micro_batch_size=8", "parallel.world_size=8"),
        *CHUNKS[1:],
    ),
    "pipeline first": ("parallel.pipeline_before_data=true",),
    "narrow products": ("precision.matmul_recipe=fp8-rowwise",),
}
NOT_PASSED_ON = {
    "megatron-lm": {"uneven groups", "recompute pointwise"},
    "torchtitan": {"narrow products"},
}
"""What the program's trainer can run, and is not told by the flags of its file, which refuses it."""


CHOICE = {
    "trisweep": ["trainer=trisweep"],
    "megatron-lm": ["trainer=megatron-lm"],
    # Which has tensor ranks and stages beside shards alone.
    "torchtitan": ["trainer=torchtitan", "parallel.zero_stage=2"],
}


def price(trainer: str, *overrides: str) -> None:
    """What is asked before a plan is priced for a trainer."""
    require_runnable(setup_of([*JOB, *overrides]), trainer, limits_of(trainer))


def refusal(trainer: str, *overrides: str) -> str:
    with pytest.raises(InfeasiblePlan) as caught:
        price(trainer, *overrides)
    return str(caught.value)


def experiment_of(trainer: str, *overrides: str) -> Experiment:
    return load([*LLAMA, "batch.global_batch_size=64", *CHOICE.get(trainer, ()), *overrides]).experiment()


def is_composed(trainer: str, *overrides: str) -> bool:
    try:
        experiment_of(trainer, *overrides)
    except InfeasiblePlan:
        return False
    return True


def is_searched(trainer: str, *overrides: str) -> bool:
    asked = composed([*LLAMA, "batch.global_batch_size=64", *CHOICE.get(trainer, ()), *overrides])
    try:
        return bool(choose_plans(search_request(asked, headroom="0").spaces, "time", Training(), top=1).best)
    except ConfigError:
        return False


def test_every_trainer_has_one_list() -> None:
    assert all(limits_of(trainer) for trainer in get_args(CostsOf))


@pytest.mark.parametrize("file", [name for name in options("trainer") if name not in ("command", "trisweep")])
def test_what_a_program_refuses_of_a_plan_a_search_for_its_trainer_reads(file: str) -> None:
    """A file adds what it lacks of a model or a training; of plans it takes over the list that searches read."""
    program = load([*LLAMA, f"trainer={file}", *(["trainer.command=[fit.py]"] if file == "script" else [])]).trainer
    if program.limits_of is None:
        return
    of_plans = {limit.of: limit for limit in program.refuses if limit.of in DERIVED_VALUES or limit.of in LAYOUT_KEYS}
    read = {limit.of: limit for limit in limits_of(program.costs_of) if not limit.beside}
    assert [key for key, limit in of_plans.items() if key not in read or read[key].other_than != limit.other_than] == []


@pytest.mark.one_in(8)
@pytest.mark.parametrize("trainer", ["trisweep", "megatron-lm", "torchtitan"])
@pytest.mark.parametrize("plan", PLANS)
def test_a_search_leaves_out_what_a_composed_experiment_refuses(trainer: str, plan: str) -> None:
    is_told = plan not in NOT_PASSED_ON.get(trainer, ())
    assert is_composed(trainer, *PLANS[plan]) == (is_told and is_searched(trainer, *PLANS[plan]))


@pytest.mark.parametrize("key", sorted(OWN_REFUSALS))
def test_what_our_own_trainer_refuses_to_run_it_also_refuses_to_price(key: str) -> None:
    value = OWN_REFUSALS[key]
    assert not runs("trisweep", key, value)
    shown = str(value).lower() if isinstance(value, bool) else value
    # A model without experts has none to spread, whatever the trainer.
    with refused(InfeasiblePlan, key):
        load([*JOB, f"{key}={shown}"]).experiment()


def test_what_our_own_trainer_does_not_do_with_latent_attention_is_refused_there_alone() -> None:
    job = ("parallel.world_size=2", "batch.global_batch_size=2", "precision=bf16", "cluster=gb200-nvl72")
    latent, pointwise = (
        ("model=deepseek-v2", "model.num_layers=2", "model.experts=null"),
        "parallel.recompute=pointwise",
    )
    with refused(InfeasiblePlan, "parallel.recompute"):
        load([*job, *latent, pointwise]).experiment()
    load([*job, pointwise, "model=llama-2-7b"]).experiment()
    context = "parallel.context_parallel_size=2"
    load([*job, *latent, context]).experiment()
    wide = "model.latent_attention.value_head_size=256"
    load([*job, *latent, wide]).experiment()
    with refused(InfeasiblePlan, "parallel.context_parallel_size"):
        load([*job, *latent, wide, context]).experiment()


@pytest.mark.parametrize(
    ("plan", "key"),
    [
        (("parallel.zero_stage=3",), "parallel.zero_stage"),
        (("parallel.recompute=pointwise",), "parallel.recompute"),
        (("model.experts.capacity_factor=0.5",), "model.experts.capacity_factor"),
        (("model.gated_mlp=false",), "model.family"),
        (("parallel.tensor_parallel_size=2",), "parallel.tensor_parallel_size"),
        (("parallel.expert_parallel_size=3",), "parallel.expert_parallel_size"),
        (("model.experts.top_k=1",), "model.experts.top_k"),
        (("model.experts.top_k=9",), "model.experts.top_k"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_our_own_trainer_does_not_do_with_experts_is_refused(plan: tuple[str, ...], key: str) -> None:
    job = ("model=moe-proxy", "cluster=local", "parallel.world_size=6", "batch.global_batch_size=12")
    with refused(ConfigError, key):
        load([*job, *plan]).experiment()


def test_a_stored_experiment_of_our_own_trainer_is_held_against_the_same_list() -> None:
    stored = load(JOB).experiment().model_dump(mode="json")
    assert stored["trainer"] == {"kind": "trisweep"}
    stored["parallel"]["offload_optimizer"] = True
    with refused(InfeasiblePlan, "parallel.offload_optimizer"):
        Experiment.model_validate(stored, strict=False)


def test_fsdp_has_no_pipelines_and_torchtitan_has() -> None:
    assert "parallel.pipeline_parallel_size = 4: is not supported by fsdp" in refusal("fsdp", PIPELINE[1])
    price("torchtitan", *PIPELINE, "parallel.zero_stage=2")


def test_a_refusal_says_what_to_use_instead() -> None:
    message = refusal("megatron-deepspeed", "parallel.pipeline_parallel_size=4", "parallel.schedule=zero-bubble")
    assert "parallel.schedule = 'zero-bubble': is not supported by megatron-deepspeed" in message
    assert "Use parallel.schedule=1f1b, or choose another trainer." in message


def test_a_program_refuses_in_the_same_words_as_the_trainer_whose_list_it_takes_over() -> None:
    plan = ("parallel.pipeline_parallel_size=4", "parallel.schedule=zero-bubble")
    with pytest.raises(InfeasiblePlan) as caught:
        experiment_of("torchtitan", *plan)
    assert str(caught.value) == refusal("torchtitan", *plan)


def test_some_limits_hold_only_beside_a_pipeline_or_tensor_ranks() -> None:
    assert runs("megatron-core", "parallel.zero_stage", 3)
    assert not runs("megatron-core", "parallel.zero_stage", 3, frozenset({"pipeline"}))
    assert runs("torchtitan", "parallel.sequence_parallel", False)
    assert not runs("torchtitan", "parallel.sequence_parallel", False, frozenset({"tensor"}))
    assert runs("torchtitan", "parallel.zero_stage", 0, frozenset({"tensor"}))
    assert not runs("torchtitan", "parallel.zero_stage", 0, frozenset({"tensor", "replicas"}))


def test_what_a_program_runs_otherwise_is_not_priced_and_runs_all_the_same() -> None:
    plan = "parallel.tensor_parallel_size=2"
    assert "parallel.sequence_parallel = False: is not supported by torchtitan" in refusal(
        "torchtitan", plan, "parallel.zero_stage=2"
    )
    assert experiment_of("torchtitan", plan)


@pytest.mark.slow
def test_delayed_scaling_does_not_go_with_pointwise_recomputation_in_megatron_core() -> None:
    message = refusal("megatron-core", *MIXTURE, AGAIN, "precision.matmul_recipe=fp8-delayed")
    assert "parallel.recompute = 'pointwise': is not supported by megatron-core: with delayed scaling" in message
    price("megatron-core", *MIXTURE, AGAIN, "precision.matmul_recipe=mxfp8")
    price("megatron-core", *MIXTURE, AGAIN)
    assert not runs("megatron-core", "parallel.recompute", "pointwise", frozenset({"fp8-delayed"}))
    assert runs("megatron-core", "parallel.recompute", "full", frozenset({"fp8-delayed"}))


@pytest.mark.parametrize("plain", [(), (*MIXTURE, "model.experts.num_dense_layers=1")])
def test_megatron_core_makes_no_activation_again_but_that_of_experts(plain: tuple[str, ...]) -> None:
    """Its own file refuses this by the same list, so that no search proposes what `--as` does not print."""
    assert "its module moe_act recomputes the activations of experts alone" in refusal("megatron-core", *plain, AGAIN)


def test_groups_of_interleaved_micro_batches_are_of_one_size_but_for_the_last() -> None:
    one_replica = (*CHUNKS, "parallel.world_size=4", "batch.micro_batch_size=1")
    for size in (16, 19):
        price("megatron-core", *one_replica, f"batch.global_batch_size={size}")
    for size in (17, 18):
        said = refusal("megatron-core", *one_replica, f"batch.global_batch_size={size}")
        assert "but the last have one size" in said


def test_stages_of_unequal_layers_are_named_by_their_layers() -> None:
    stages = ("parallel.pipeline_parallel_size=2", "parallel.layers_per_stage=[23,25]")
    assert "parallel.layers_per_stage = [23, 25]: is not supported by megatron-lm" in refusal("megatron-lm", *stages)
    price("torchtitan", *stages, "parallel.zero_stage=2")


def test_chunks_of_unequal_layers_are_named_by_their_number() -> None:
    chunks = (PIPELINE[1], "parallel.schedule=interleaved", "parallel.virtual_pipeline_size=5")
    message = refusal("megatron-lm", *chunks)
    assert "parallel.virtual_pipeline_size = 5: is not supported by megatron-lm: it interleaves chunks" in message
    price("megatron-core", *chunks)


def test_in_which_layers_is_no_question_where_nothing_is_recomputed() -> None:
    assert "is not supported by megatron-core" in refusal(
        "megatron-core", "parallel.recompute=full", "parallel.recompute_every=2"
    )
    price("megatron-core", "parallel.recompute=none", "parallel.recompute_every=2")


def test_what_no_limit_names_is_allowed() -> None:
    assert runs("megatron-core", "parallel.context_parallel_size", 8)
    assert runs("trisweep", "parallel.schedule", "zero-bubble", frozenset({"pipeline"}))
    assert runs("torchtitan", LAYER_SPLIT, "ends")


@pytest.mark.parametrize("trainer", ["deepspeed", "hf-trainer", "megatron-lm", "torchtitan"])
def test_no_other_trainer_runs_windows_as_if_there_were_none(trainer: str) -> None:
    plan = ["batch.global_batch_size=64", f"trainer={trainer}", "model.attention_window={size: 128, full_every: 2}"]
    with refused(InfeasiblePlan, "model.attention_window"):
        load([*LLAMA, *plan]).experiment()


def test_this_trainer_runs_windows_but_for_latent_attention() -> None:
    window = "model.attention_window={size: 128, full_every: 2}"
    assert experiment_of("trisweep", window).model.window_of(0) == 128
    latent = "model.latent_attention={query_rank: 64, key_value_rank: 64, rotary_head_size: 16, value_head_size: 64}"
    with refused(InfeasiblePlan, "model.attention_window"):
        experiment_of("trisweep", window, latent, "model.num_query_groups=${model.num_attention_heads}")
