"""Commands for other trainers that public reports name: each starts there, or is refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from conf.errors import ConfigError, InfeasiblePlan
from conf.plan.trainer_call import JOB_NAMES, call_of, met_limits, names_of
from sweeps.planner.choosing.choice import choose_plans
from sweeps.planner.choosing.objectives import Training
from sweeps.planner.request import search_request
from tests.cli.commands.plan.conftest import Plan, plan, refusal  # noqa: F401
from tests.composed import composed, load
from tests.messages import refused

ON_H100 = ("cluster=dgx-h100", "precision=bf16")
SMALL = ("model=llama-2-7b", *ON_H100, "batch.global_batch_size=64", "parallel.world_size=8", "parallel.zero_stage=1")
TITAN = ("model=llama-3.1-8b", *ON_H100, "parallel.world_size=8")
FP16 = ("model=gpt-22b", "cluster=selene", "precision=fp16", "batch.global_batch_size=64", "parallel.world_size=16")
TRAINERS = ("megatron-lm", "torchtitan", "deepspeed", "hf-trainer", "hf-deepspeed")


def words(trainer: str, *overrides: str) -> list[str]:
    experiment = load([f"trainer={trainer}", *overrides]).experiment()
    return list(call_of(experiment.trainer, experiment, dict.fromkeys(JOB_NAMES, "X")).words)


def number_of(found: Sequence[str], flag: str) -> float | None:
    return float(found[found.index(flag) + 1]) if flag in found else None


@pytest.mark.parametrize("trainer", ["megatron-lm", "deepspeed"])
@pytest.mark.parametrize("rate", ["1e-6", "1e-5", "1e-3"])
def test_the_least_learning_rate_is_no_higher_than_the_highest(trainer: str, rate: str) -> None:
    found = words(trainer, *SMALL, f"training.learning_rate={rate}")
    least, highest = number_of(found, "--min-lr"), number_of(found, "--lr")
    assert least is not None
    assert highest is not None
    assert 0 <= least <= highest


@pytest.mark.parametrize("trainer", ["megatron-lm", "deepspeed"])
@pytest.mark.parametrize(("steps", "warmup"), [(2, 0), (2, 1), (2, 2), (10, 2), (10, 10)], ids=str)
def test_a_warm_up_ends_before_the_decay_does(trainer: str, steps: int, warmup: int) -> None:
    schedule = (f"training.num_steps={steps}", f"training.learning_rate_warmup_steps={warmup}")
    found = words(trainer, *SMALL, "training.num_warmup_steps=1", *schedule)
    ends = number_of(found, "--lr-decay-iters") or number_of(found, "--train-iters")
    assert number_of(found, "--train-iters") == steps
    assert number_of(found, "--lr-warmup-iters") == warmup
    assert ends is not None
    assert warmup < ends


def test_a_schedule_has_the_words_of_each_program() -> None:
    wsd = ("training.num_steps=100", "training.schedule=wsd")
    found = words("megatron-lm", *SMALL, *wsd)
    assert found[found.index("--lr-decay-style") + 1] == "WSD"
    assert number_of(found, "--lr-wsd-decay-iters") == 10
    assert "--lr-wsd-decay-iters" not in words("megatron-lm", *SMALL)
    found = words("torchtitan", *TITAN, "parallel.zero_stage=3", "batch.global_batch_size=32", *wsd)
    assert found[found.index("--lr_scheduler.decay_type") + 1] == "linear"
    assert number_of(found, "--lr_scheduler.decay_ratio") == 0.1


def test_torchtitans_rate_ends_where_the_plans_does() -> None:
    rates = ("training.learning_rate=4e-4", "training.min_learning_rate=1e-4")
    found = words("torchtitan", *TITAN, "parallel.zero_stage=3", "batch.global_batch_size=32", *rates)
    assert number_of(found, "--lr_scheduler.min_lr_factor") == 0.25


@pytest.mark.slow
def test_the_best_plan_for_megatron_offloads_the_state_of_its_distributed_optimizer_alone() -> None:
    """Of all plans of a 70B on one node those that offload are the only ones that fit."""
    job = ["model=llama-2-70b", *ON_H100, "batch.global_batch_size=64", "parallel.world_size=8", "trainer=megatron-lm"]
    few = ["parallel.recompute=full", "parallel.recompute_every=1", "parallel.context_parallel_size=1"]
    best = choose_plans(search_request(composed([*job, *few])).spaces, "time", Training(), 20).best
    assert {each.strategy.parallel.offload_optimizer for each in best} == {True}
    assert {each.strategy.parallel.zero_stage for each in best} == {1}


REFUSED = {
    "offload without ZeRO": (
        "megatron-lm",
        (*SMALL, "parallel.zero_stage=0", "parallel.offload_optimizer=true"),
        "parallel.zero_stage",
    ),
    "offload of fp32 weights": (
        "megatron-lm",
        (*SMALL, "parallel.offload_optimizer=true", "precision=fp32"),
        "parallel.offload_optimizer",
    ),
    "fewer interleaved micro-batches than stages": (
        "megatron-lm",
        (
            *("model=gpt-175b", "cluster=selene", "precision=bf16", "parallel.world_size=48"),
            *("batch.global_batch_size=3", "batch.micro_batch_size=1", "parallel.tensor_parallel_size=8"),
            *("parallel.pipeline_parallel_size=6", "parallel.schedule=interleaved", "parallel.virtual_pipeline_size=2"),
        ),
        "parallel.pipeline_parallel_size",
    ),
    "context ranks of a dense model, with stages as neighbours": (
        "megatron-lm",
        (
            *(*SMALL, "parallel.world_size=32", "parallel.pipeline_parallel_size=2"),
            *("parallel.context_parallel_size=2", "parallel.pipeline_before_data=true"),
        ),
        "parallel.pipeline_before_data",
    ),
    "experts on devices of compute capability 7": (
        "megatron-lm",
        (
            *("model=mixtral-8x7b", "cluster=dgx1-v100", "precision=fp16", "parallel.world_size=8"),
            *("batch.global_batch_size=8", "parallel.expert_parallel_size=8"),
        ),
        "cluster.device.name",
    ),
    "fewer micro-batches than stages in 1F1B": (
        "torchtitan",
        (
            *(*TITAN, "batch.global_batch_size=4", "batch.micro_batch_size=1"),
            *("parallel.pipeline_parallel_size=8", "parallel.zero_stage=0", "precision=fp32"),
        ),
        "parallel.pipeline_parallel_size",
    ),
    "a rate that stays": (
        "torchtitan",
        (*TITAN, "batch.global_batch_size=32", "parallel.zero_stage=3", "training.schedule=constant"),
        "training.schedule",
    ),
    "a rate that stays and falls": (
        "deepspeed",
        (*SMALL, "training.schedule=wsd"),
        "training.schedule",
    ),
    "replicas beside tensor ranks without shards": (
        "torchtitan",
        (*TITAN, "batch.global_batch_size=32", "parallel.tensor_parallel_size=4", "parallel.zero_stage=0"),
        "parallel.zero_stage",
    ),
    "replicas beside stages without shards": (
        "torchtitan",
        (*TITAN, "batch.global_batch_size=32", "parallel.pipeline_parallel_size=4", "parallel.zero_stage=0"),
        "parallel.zero_stage",
    ),
    "tensor ranks of one replica in bf16": (
        "torchtitan",
        (*TITAN, "batch.global_batch_size=32", "parallel.tensor_parallel_size=8", "parallel.sequence_parallel=true"),
        "parallel.num_replicas",
    ),
    "a loss scale that is no power of two": (
        "deepspeed",
        (*FP16, "precision.initial_loss_scale=1000"),
        "precision.dtype",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_program_itself_would_refuse_is_refused_with_the_reason(case: str) -> None:
    trainer, overrides, key = REFUSED[case]
    with refused(InfeasiblePlan, key):
        load([f"trainer={trainer}", *overrides]).experiment()


def test_groups_of_zero_are_told_where_there_is_zero() -> None:
    groups = (*SMALL, "parallel.zero_group_size=2")
    assert number_of(words("megatron-lm", *groups), "--num-distributed-optimizer-instances") == 4
    assert "--num-distributed-optimizer-instances" not in words("megatron-lm", *groups, "parallel.zero_stage=0")


@pytest.mark.parametrize(
    ("recipe", "offload", "is_gathered"),
    [("tensorwise", "false", True), ("tensorwise", "true", False), ("delayed", "true", True)],
)
def test_weights_are_gathered_in_fp8_where_offloading_takes_that(recipe: str, offload: str, is_gathered: bool) -> None:
    scaled = (f"precision.matmul_recipe=fp8-{recipe}", f"parallel.offload_optimizer={offload}")
    assert ("--fp8-param-gather" in words("megatron-lm", *SMALL, *scaled)) == is_gathered


@pytest.mark.parametrize(("dispatcher", "is_padded"), [("alltoall", True), ("hybridep", True), ("deepep", False)])
def test_tokens_are_padded_where_the_dispatcher_takes_that(dispatcher: str, is_padded: bool) -> None:
    experts = ("model=qwen3-30b-a3b", *ON_H100, "batch.global_batch_size=16", "parallel.world_size=16")
    spread = ("parallel.expert_parallel_size=16", "parallel.zero_stage=1", f"parallel.expert_dispatcher={dispatcher}")
    found = words("megatron-lm", *experts, *spread, "model.experts.capacity_factor=1.5")
    assert number_of(found, "--moe-expert-capacity-factor") == 1.5
    assert ("--moe-pad-expert-input-to-capacity" in found) == is_padded


def test_gpipe_takes_fewer_micro_batches_than_stages() -> None:
    few = ("batch.global_batch_size=4", "batch.micro_batch_size=1", "parallel.pipeline_parallel_size=8")
    found = words("torchtitan", *TITAN, *few, "parallel.schedule=gpipe", "precision=fp32")
    assert found[found.index("--parallelism.pipeline_parallel_schedule") + 1] == "GPipe"


@pytest.mark.slow
def test_a_search_says_why_the_pinned_knobs_leave_no_plan(refusal: Plan) -> None:  # noqa: F811
    for trainer, overrides, key in (REFUSED[case] for case in REFUSED if case.startswith(("fewer", "replicas"))):
        typed = [text for text in overrides if text != "precision=fp32"]
        assert f"{key} = " in refusal(*typed, "--as", trainer)
    stages = ("parallel.pipeline_parallel_size=2", "parallel.zero_stage=2")
    said = refusal(*FP16, "precision=bf16", *stages, "--as", "megatron-lm")
    assert "parallel.zero_stage = 2: is not supported by megatron-core: its FSDP" in said
    assert "runs without a pipeline here" in said


RACK = ("model=llama-2-70b", "cluster=gb200-nvl72", "precision=bf16", "batch.global_batch_size=64")
TENSOR = ("parallel.world_size=64", "parallel.tensor_parallel_size=16", "parallel.zero_stage=1")


def test_tensor_ranks_of_one_rack_may_be_more_than_a_node_and_than_groups_of_keys(plan: Plan) -> None:  # noqa: F811
    """Eight groups on sixteen ranks: the heads divide, and the groups divide the ranks."""
    assert number_of(words("megatron-lm", *RACK, *TENSOR), "--tensor-model-parallel-size") == 16
    few = ("parallel.recompute=none", "parallel.recompute_every=1", "parallel.context_parallel_size=1")
    printed = plan(*RACK, *TENSOR, *few, "batch.micro_batch_size=1", "--as", "megatron-lm")
    assert "--tensor-model-parallel-size 16" in printed
    assert "gather queries, keys and values before" in " ".join(printed.replace("#", " ").split())


@pytest.mark.parametrize(
    ("trainer", "changed", "can_be"),
    [
        ("megatron-lm", ("parallel.world_size=128",), False),
        ("megatron-lm", ("cluster=dgx-h100",), False),
        ("megatron-lm", ("model.num_query_groups=32", "parallel.tensor_parallel_size=64"), True),
        ("megatron-lm", ("model.num_query_groups=64", "model.num_attention_heads=64"), True),
        ("trisweep", (), False),
    ],
)
def test_how_far_tensor_ranks_reach(trainer: str, changed: tuple[str, ...], can_be: bool) -> None:
    asked = load([f"trainer={trainer}", *RACK, *TENSOR, *changed])
    if can_be:
        asked.experiment()
        return
    with refused(InfeasiblePlan, "parallel.tensor_parallel_size"):
        asked.experiment()


OF_PRECISION = {
    "initial_loss_scale": (*FP16, "precision.initial_loss_scale=1024"),
    "loss_scale_window": (*FP16, "precision.loss_scale_window=77"),
    "gradient_dtype": (*FP16, "precision=bf16", "precision.gradient_dtype=bf16"),
    "matmul_recipe": (*FP16, "cluster=dgx-h100", "precision=bf16", "precision.matmul_recipe=fp8-tensorwise"),
    "wide_layers": (*FP16, "cluster=dgx-h100", "precision=fp8", "precision.wide_layers=1"),
    "emulate": (*FP16, "cluster=dgx-h100", "precision=fp8", "precision.emulate=true"),
    "dtype": (*FP16, "precision=fp32"),
}


def told(trainer: str, overrides: Sequence[str]) -> tuple[object, ...] | None:
    """All that a program is told, and that is said of it; None of a plan that is refused."""
    model = ("model=llama-3.1-8b",) if trainer == "torchtitan" else ()
    try:
        experiment = load([f"trainer={trainer}", *overrides, *model]).experiment()
    except ConfigError:
        return None
    spec, job = experiment.trainer, dict.fromkeys(JOB_NAMES, "X")
    call = call_of(spec, experiment, job)
    differs = met_limits(spec.differs, names_of(spec, experiment, job), "trainer.differs")
    return (call.words, call.files, call.environment, differs)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("key", OF_PRECISION)
def test_a_key_of_precision_is_passed_on_or_refused_or_said(trainer: str, key: str) -> None:
    whole = OF_PRECISION[key]
    without = [text for text in whole if not text.startswith(f"precision.{key}=")]
    if key == "dtype":
        without = [text for text in whole if text != "precision=fp32"] + ["precision=bf16"]
    changed = told(trainer, whole)
    is_said = changed is not None and "precision.initial_loss_scale" in str(changed[-1])
    assert changed is None or is_said or changed != told(trainer, without)


@pytest.mark.parametrize("trainer", ["deepspeed", "hf-deepspeed"])
@pytest.mark.parametrize(("scale", "power"), [("1024", 10), ("1", 0), ("65536", 16)])
def test_deepspeed_begins_with_the_loss_scale_of_the_plan(trainer: str, scale: str, power: int) -> None:
    experiment = load([f"trainer={trainer}", *FP16, f"precision.initial_loss_scale={scale}"]).experiment()
    call = call_of(experiment.trainer, experiment, dict.fromkeys(JOB_NAMES, "X"))
    fp16 = json.loads(call.files["deepspeed.json"])["fp16"]
    assert fp16["initial_scale_power"] == power
    assert fp16["hysteresis"] == 1
