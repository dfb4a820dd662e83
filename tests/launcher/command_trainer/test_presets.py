"""The three presets: their flags for a plan, and what their patterns find in lines as those programs print them.

The lines in `logs/` follow the format strings of Megatron-LM (training.py at d98e8a64), torchtitan (metrics.py at
v0.2.2), Megatron-DeepSpeed (training.py at 4efb479d) and DeepSpeed (timer.py, pipe/engine.py at edaa7221). The
numbers are made up.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from conf.compose.model_from import expand_model_from
from conf.errors import InfeasiblePlan
from conf.plan.experiment import Experiment
from conf.plan.trainer_call import JOB_NAMES, call_of
from launcher.command_trainer.job import LogTail
from launcher.command_trainer.log_parser import StepParser
from tests.composed import load
from tests.messages import refused

LOGS = Path(__file__).parent / "logs"
STEPS = ["training.num_steps=3", "training.num_warmup_steps=1", "batch.global_batch_size=64"]
LLAMA = ["model=llama-3.1-8b", "cluster=dgx-h100", "precision=bf16", "parallel.world_size=16", *STEPS]
INTERLEAVED = ["parallel.schedule=interleaved"]
SHARDED = ["parallel.zero_stage=2"]
GPT = ["model=gpt-22b", "cluster=selene", "precision=fp16", "parallel.world_size=16", *STEPS]


def experiment_of(trainer: str, *overrides: str) -> Experiment:
    return load([f"trainer={trainer}", *overrides]).experiment()


def words(trainer: str, *overrides: str) -> list[str]:
    experiment = experiment_of(trainer, *overrides)
    return list(call_of(experiment.trainer, experiment, dict.fromkeys(JOB_NAMES, "X")).words)


def has(found: Sequence[str], *expected: str) -> bool:
    """Whether the words hold these, one after the other."""
    return any(tuple(found[start : start + len(expected)]) == expected for start in range(len(found)))


def read(experiment: Experiment, log: str) -> StepParser:
    book = StepParser(experiment)
    for line in LogTail(LOGS / f"{log}.log").lines():
        list(book.hear(line))
    list(book.close())
    return book


def test_megatron_lms_lines_become_steps() -> None:
    book = read(experiment_of("megatron-lm", *LLAMA), "megatron-lm")
    assert [step.step_seconds for step in book.steps] == pytest.approx([12.3456, 2.0, 2.01])
    assert [step.loss for step in book.steps] == [11.0834, 10.5, 10.0]
    assert [step.gradient_norm for step in book.steps] == [9.128, 2.5, 2.0]
    assert [step.learning_rate for step in book.steps] == [1.5e-4, 3e-4, 3e-5]
    assert book.tflops == {1: 45.6, 2: 401.2, 3: 399.2}
    assert book.memory_bytes == 40 * 2**30
    assert book.is_done
    assert book.matched == set(book.patterns)


def test_torchtitans_lines_become_steps_with_colours_or_without() -> None:
    book = read(experiment_of("torchtitan", *LLAMA, "parallel.zero_stage=3"), "torchtitan")
    tokens_of_a_device = 64 * 8192 / 16
    assert [step.step_seconds for step in book.steps] == [tokens_of_a_device / rate for rate in (1024, 8192, 8192)]
    assert [step.loss for step in book.steps] == [12.25911, 11.5, 11.0]
    assert book.memory_bytes == 40 * 2**30
    assert book.tflops[2] == 418.5
    assert book.is_done
    assert book.matched == set(book.patterns)


def test_megatron_deepspeeds_lines_become_steps() -> None:
    book = read(experiment_of("deepspeed", *GPT), "megatron-deepspeed")
    assert [step.step for step in book.steps] == [1, 2, 3]
    assert [step.step_seconds for step in book.steps] == pytest.approx([9.0, 2.0, 2.01])
    assert [step.loss for step in book.steps] == [11.0834, 10.5, 10.0]
    assert book.memory_bytes == 20.5 * 2**30
    assert book.tflops[3] == 55.27


def test_the_lines_of_deepspeeds_pipeline_become_steps() -> None:
    book = read(experiment_of("deepspeed", *GPT), "deepspeed-pipeline")
    assert [(step.step_seconds, step.loss) for step in book.steps] == [(9.0, 11.0834), (2.0, 10.5), (2.01, 10.0)]


def test_the_lines_of_deepspeeds_timer_become_steps_without_losses() -> None:
    book = read(experiment_of("deepspeed", *GPT), "deepspeed-engine")
    assert [(step.step, step.step_seconds) for step in book.steps] == [(2, 2.0), (3, 2.0)]
    assert all(math.isnan(step.loss) for step in book.steps)


def test_megatron_lms_flags_say_the_plan() -> None:
    plan = [
        *("parallel.tensor_parallel_size=4", "parallel.pipeline_parallel_size=4", "parallel.sequence_parallel=true"),
        *("parallel.schedule=interleaved", "parallel.virtual_pipeline_size=3", "parallel.recompute=full"),
    ]
    found = words("megatron-lm", *GPT, *plan)
    assert has(found, "--tensor-model-parallel-size", "4", "--pipeline-model-parallel-size", "4")
    assert has(found, "--num-virtual-stages-per-pipeline-rank", "3")
    assert has(found, "--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1")
    assert {"--sequence-parallel", "--fp16"} <= set(found)
    assert not {"--bf16", "--swiglu", "--use-distributed-optimizer", "--rotary-base"} & set(found)
    llama = words("megatron-lm", *LLAMA, "parallel.zero_stage=1")
    assert {"--use-distributed-optimizer", "--swiglu", "--bf16", "--group-query-attention"} <= set(llama)
    assert has(llama, "--rotary-base", "500000", "--use-rope-scaling", "--rope-scaling-factor", "8.0")


@pytest.mark.slow
def test_programs_are_told_of_biases_norms_and_epsilons_or_refuse_them() -> None:
    other = ("model.norm_epsilon=1e-6", "model.qkv_bias=true", "model.qk_norm=true")
    megatron = words("megatron-lm", *LLAMA, *other)
    assert has(megatron, "--norm-epsilon", "1e-06")
    assert {"--add-qkv-bias", "--disable-bias-linear", "--qk-layernorm"} <= set(megatron)
    assert not {"--norm-epsilon", "--add-qkv-bias", "--qk-layernorm"} & set(words("megatron-lm", *LLAMA))
    llama_2 = ["model=llama-2-7b", *LLAMA[1:]]
    assert has(words("deepspeed", *llama_2, other[0]), "--layernorm-epsilon", "1e-06")
    assert "--layernorm-epsilon" not in words("deepspeed", *llama_2)
    for override, key in zip(other[1:], ("qkv_bias", "qk_norm"), strict=True):
        with refused(InfeasiblePlan, f"model.{key}"):
            experiment_of("deepspeed", *llama_2, override)
    for override, key in zip(other, ("norm_epsilon", "qkv_bias", "qk_norm"), strict=True):
        with refused(InfeasiblePlan, f"model.{key}"):
            experiment_of("torchtitan", *LLAMA, override)


def test_megatron_lm_can_start_with_the_whole_vocabulary_and_without_a_distributed_optimizer() -> None:
    """Its trainer divides by the interval of evaluations; its tokenizer of no text adds no token of its own."""
    found = words("megatron-lm", *LLAMA)
    assert has(found, "--vocab-size", "128256")
    assert has(found, "--eval-interval", "1000")
    fp8 = [*LLAMA, "precision.matmul_recipe=fp8-delayed"]
    assert "--fp8-param-gather" not in words("megatron-lm", *fp8, "parallel.zero_stage=0")
    assert "--fp8-param-gather" in words("megatron-lm", *fp8, "parallel.zero_stage=1")


@pytest.mark.parametrize(
    ("plan", "layout"),
    [
        ([], None),
        (["parallel.layers_per_stage=[7,9,9,7]"], "Et*7|(t*9|)*2t*7L"),
        (["parallel.layers_per_stage=[6,10,9,7]"], "Et*6|t*10|t*9|t*7L"),
        ([*INTERLEAVED, "parallel.virtual_pipeline_size=2"], None),
        ([*INTERLEAVED, "parallel.virtual_pipeline_size=3"], "Ett|(ttt|)*8(tt|)*2ttL"),
    ],
)
def test_megatron_lm_is_told_the_layers_of_parts_that_are_not_alike(plan: list[str], layout: str | None) -> None:
    found = words("megatron-lm", *LLAMA, "parallel.pipeline_parallel_size=4", *plan)
    assert ("--pipeline-model-parallel-layout" in found) is (layout is not None)
    assert layout is None or has(found, "--pipeline-model-parallel-layout", layout)
    is_in_equal_chunks = layout is None and bool(plan)
    assert ("--num-virtual-stages-per-pipeline-rank" in found) is is_in_equal_chunks  # which a layout says too


def test_megatron_lm_is_told_the_size_of_uneven_groups_of_micro_batches() -> None:
    chunks = [*INTERLEAVED, "parallel.pipeline_parallel_size=4", "parallel.virtual_pipeline_size=2"]
    one_replica = [*chunks, "parallel.tensor_parallel_size=4"]
    found = words("megatron-lm", *LLAMA, *one_replica, "batch.global_batch_size=19")  # 5 + 5 + 5 + 4
    assert has(found, "--microbatch-group-size-per-virtual-pipeline-stage", "5")
    assert "--microbatch-group-size-per-virtual-pipeline-stage" not in words("megatron-lm", *LLAMA, *one_replica)


@pytest.mark.parametrize(
    ("plan", "overlaps"),
    [
        ([], {"--overlap-grad-reduce"}),
        (["parallel.zero_stage=1"], {"--overlap-grad-reduce", "--overlap-param-gather"}),
        (["parallel.zero_stage=3"], {"--overlap-grad-reduce", "--overlap-param-gather"}),
        (["parallel.zero_stage=1", "parallel.tensor_parallel_size=8", "parallel.pipeline_parallel_size=2"], set()),
    ],
)
def test_megatron_lm_overlaps_what_the_prediction_does(plan: list[str], overlaps: set[str]) -> None:
    assert {word for word in words("megatron-lm", *LLAMA, *plan) if "overlap" in word} == overlaps


def test_megatron_lm_is_told_how_tokens_find_experts() -> None:
    experts = "num_experts:8,top_k:1,ffn_hidden_size:1024"
    found = words("megatron-lm", *LLAMA, f"model.experts={{{experts},capacity_factor:1.5,balance_loss:0.01}}")
    assert has(found, "--moe-router-topk", "1", "--moe-router-pre-softmax")
    assert has(found, "--moe-router-load-balancing-type", "aux_loss", "--moe-aux-loss-coeff", "0.01")
    assert has(found, "--moe-expert-capacity-factor", "1.5", "--moe-pad-expert-input-to-capacity")
    plain = words("megatron-lm", *LLAMA, f"model.experts={{{experts.replace('top_k:1', 'top_k:2')}}}")
    assert has(plain, "--moe-router-load-balancing-type", "none")
    assert not {"--moe-router-pre-softmax", "--moe-aux-loss-coeff", "--moe-pad-expert-input-to-capacity"} & set(plain)
    assert "--moe-router-load-balancing-type" not in words("megatron-lm", *LLAMA)


LLAMA_8B = {
    "model_type": "llama",
    "hidden_act": "silu",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}


def test_torchtitans_model_is_found_by_its_shape_whatever_its_name(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA_8B))
    config = expand_model_from([f"model_from={file}", *LLAMA[1:], "parallel.zero_stage=3"]).texts
    assert has(words("torchtitan", *config), "--model.flavor", "8B")
    assert has(words("torchtitan", *LLAMA, "model=llama-3.1-70b"), "--model.flavor", "70B")
    own = ["model=llama-2-7b", "trainer.values.flavor.to.llama-2-7b=mine"]
    assert has(words("torchtitan", *LLAMA, *own), "--model.flavor", "mine")
    with refused(InfeasiblePlan, "model.name"):
        experiment_of("torchtitan", *LLAMA, "model=llama-3.1-70b", "model.num_layers=79")


def test_a_rank_without_the_last_stage_says_no_loss() -> None:
    pattern = re.compile(experiment_of("torchtitan", *LLAMA).trainer.log.patterns["loss"])
    assert not pattern.search("step:  3  loss: -1.00000  grad_norm:  2.1")
    found = pattern.search("step:  3  loss:  6.90100  grad_norm:  2.1")
    assert found is not None
    assert found["loss"] == "6.90100"


def test_torchtitans_flags_say_the_plan() -> None:
    found = words("torchtitan", *LLAMA, "parallel.zero_stage=3", "batch.micro_batch_size=2")
    assert has(found, "--training.local_batch_size", "2", "--training.global_batch_size", "64")
    assert has(found, "--parallelism.data_parallel_replicate_degree", "1")
    assert has(found, "--parallelism.data_parallel_shard_degree", "16")
    assert has(found, "--model.flavor", "8B")
    staged = words("torchtitan", *LLAMA, *SHARDED, "parallel.pipeline_parallel_size=4", "batch.micro_batch_size=2")
    assert has(staged, "--training.local_batch_size", "16")
    assert has(staged, "--parallelism.pipeline_parallel_microbatch_size", "2")
    assert has(staged, "--parallelism.pipeline_parallel_schedule", "1F1B")


@pytest.mark.parametrize(
    ("plan", "layers", "first", "last"),
    [
        ([4], "8", "0", "0"),
        ([4, "[7,9,9,7]"], "9", "2", "2"),
        ([4, "[8,8,8,8]"], "8", "0", "0"),
        ([3, "[10,11,11]"], "11", "1", "0"),
        ([3, "[11,11,10]"], "11", "0", "1"),
        ([2, "[17,15]"], "17", "0", "2"),
        ([2, "[15,17]"], "17", "2", "0"),
    ],
)
def test_torchtitan_is_told_how_many_layers_less_its_ends_have(
    plan: list[int | str], layers: str, first: str, last: str
) -> None:
    names = ("parallel.pipeline_parallel_size", "parallel.layers_per_stage")
    stages = [f"{name}={value}" for name, value in zip(names, plan, strict=False)]
    world = ["parallel.world_size=24", "batch.global_batch_size=48"] if plan[0] == 3 else []
    found = words("torchtitan", *LLAMA, *SHARDED, *world, *stages)
    assert has(found, "--parallelism.pipeline_parallel_layers_per_stage", layers)
    assert has(found, "--parallelism.pipeline_parallel_first_stage_less_layers", first)
    assert has(found, "--parallelism.pipeline_parallel_last_stage_less_layers", last)


def test_deepspeeds_file_says_the_plan() -> None:
    experiment = experiment_of("deepspeed", *GPT, "parallel.zero_stage=1", "parallel.tensor_parallel_size=2")
    call = call_of(experiment.trainer, experiment, dict.fromkeys(JOB_NAMES, "X") | {"trial_folder": "/runs/t"})
    assert has(call.words, "--deepspeed", "--deepspeed_config", "/runs/t/deepspeed.json", "--zero-stage", "1")
    config = json.loads(call.files["deepspeed.json"])
    assert (config["train_batch_size"], config["gradient_accumulation_steps"]) == (64, 8)
    assert (config["fp16"]["enabled"], config["bf16"]["enabled"]) == (True, False)
    assert config["zero_optimization"] == {"stage": 1}


IN_CHUNKS = [
    "parallel.pipeline_parallel_size=4",
    "parallel.schedule=interleaved",
    "parallel.virtual_pipeline_size=2",
    "batch.micro_batch_size=2",
]


@pytest.mark.parametrize(
    ("trainer", "plan", "key"),
    [
        ("megatron-lm", ["parallel.schedule=zero-bubble", "parallel.pipeline_parallel_size=4"], "parallel.schedule"),
        ("megatron-lm", ["parallel.recompute=full", "parallel.recompute_every=2"], "parallel.recompute_every"),
        ("megatron-lm", ["parallel.recompute=pointwise"], "parallel.recompute"),
        ("megatron-lm", [*IN_CHUNKS, "batch.global_batch_size=104"], "batch.micro_batch_size"),
        ("torchtitan", [*IN_CHUNKS, "batch.global_batch_size=80"], "batch.micro_batch_size"),
        ("torchtitan", ["parallel.zero_stage=1"], "parallel.zero_stage"),
        ("torchtitan", ["model=llama-2-7b"], "model.name"),
        ("torchtitan", ["precision=fp16"], "precision.dtype"),
        (
            "deepspeed",
            ["model=llama-2-7b", "parallel.zero_stage=2", "parallel.pipeline_parallel_size=4"],
            "parallel.zero_stage",
        ),
        ("deepspeed", [], "trainer"),
        # What no other plan helps is told before what this plan alone has.
        ("deepspeed", ["parallel.recompute=full", "parallel.recompute_every=2"], "trainer"),
    ],
)
def test_a_plan_that_a_program_cannot_carry_out_says_why(trainer: str, plan: list[str], key: str) -> None:
    with refused(InfeasiblePlan, key):
        experiment_of(trainer, *LLAMA, *plan)
