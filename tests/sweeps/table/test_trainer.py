"""The trainer of a row: named, or the usual one of its time, and what columns say that it does."""

from __future__ import annotations

import pytest

from costs import IMPLEMENTATIONS
from sweeps.table.trainer import as_stated, trainer_of


@pytest.mark.parametrize(
    ("cells", "zero_stage", "name"),
    [
        ({"flash_attention": "yes", "precision": "bf16"}, 0, "megatron-core"),
        ({"flash_attention": "yes", "precision": "fp8"}, 1, "megatron-core"),
        ({"flash_attention": "v2", "precision": "fp16"}, 1, "megatron-deepspeed"),
        ({"flash_attention": "FlashAttention-3", "precision": "bf16"}, 1, "megatron-core"),
        ({"flash_attention": "FA2", "precision": "bf16"}, 1, "megatron-core"),
        ({"flash_attention": "off", "precision": "bf16"}, 0, "megatron-lm"),
        ({"flash_attention": "no", "precision": "bf16"}, 0, "megatron-lm"),
        ({"flash_attention": "yes", "precision": "bf16"}, 3, "fsdp"),
        ({"zero_stage": "0 (DDP)", "precision": "bf16", "flash_attention": "yes"}, 0, "fsdp"),
        ({"zero_stage": "3 (FSDP2)", "precision": "fp16"}, 3, "fsdp"),
        ({"implementation": "NeMo 2.0"}, 0, "megatron-core"),
        ({"implementation": "FSDP2"}, 3, "fsdp"),
        ({"usual_implementation": "FSDP2"}, 3, "fsdp"),
    ],
)
def test_the_trainer_is_named_or_known_or_usual(cells: dict[str, str], zero_stage: int, name: str) -> None:
    assert trainer_of(cells, zero_stage, None).name == name


def test_a_row_says_whether_experts_are_multiplied_one_after_the_other() -> None:
    assert trainer_of({"grouped_gemm": "no"}, 1, "megatron-core").groups_experts is False
    assert trainer_of({}, 1, "megatron-core").groups_experts is True


def test_a_row_says_whether_exchanges_run_beside_another_micro_batch() -> None:
    assert trainer_of({"overlap_moe": "yes"}, 1, "megatron-core").experts_overlap == 1.0
    assert trainer_of({"overlap_moe": "no"}, 1, "megatron-core").experts_overlap == 0.0


def test_runs_in_bf16_since_2023_have_flash_attention_where_nothing_says_otherwise() -> None:
    megascale, palm = {"arxiv": "2402.15627", "precision": "bf16"}, {"arxiv": "2204.02311", "precision": "bf16"}
    assert trainer_of(megascale, 1, None).name == "megatron-core"
    assert trainer_of(megascale, 3, None).name == "fsdp"
    aurora = {"usual_implementation": "megatron-deepspeed", "precision": "bf16"}
    assert trainer_of(aurora, 1, None).flash_attention
    assert not trainer_of(palm, 1, None).flash_attention
    assert not trainer_of({"arxiv": "2402.15627", "precision": "fp16"}, 1, None).flash_attention
    named = {"implementation": "megatron-deepspeed", **megascale}
    assert not trainer_of(named, 1, None).flash_attention
    assert trainer_of({**named, "flash_attention": "yes"}, 1, None).flash_attention


def test_attention_is_the_trainers_own_where_the_row_does_not_say() -> None:
    assert trainer_of({}, 0, "megatron-core") == IMPLEMENTATIONS["megatron-core"]
    assert trainer_of({"flash_attention": "no"}, 0, "megatron-core").flash_attention is False


@pytest.mark.parametrize("named", ["v2", "FA2", "flash_attention_2", "FlashAttention-2", "sdpa (flash v2)"])
def test_the_second_flash_attention_is_the_best_on_ampere_and_old_on_hopper(named: str) -> None:
    read = trainer_of({"flash_attention": named}, 0, "deepspeed")
    assert (read.flash_attention, read.attention_rate) == (True, 1.0)
    assert trainer_of({"flash_attention": named}, 0, "megatron-core").attention_since_hopper < 1.0
    assert trainer_of({"flash_attention": "cudnn"}, 0, "megatron-core").attention_since_hopper == 1.0


@pytest.mark.parametrize(
    ("cells", "overlap"),
    [
        ({"async_tp": "yes"}, 1.0),
        ({"async_tp": "no"}, 0.0),
        ({"async_tp": "yes", "implementation": "torchtitan"}, 1.0),
        ({"notes": "no TP comm overlap"}, 1.0),
    ],
)
def test_a_row_says_whether_collectives_run_beside_products(cells: dict[str, str], overlap: float) -> None:
    assert trainer_of(cells, 1, None if "implementation" in cells else "megatron-core").tensor_overlap == overlap


def test_graphs_leave_the_host_nothing_to_launch() -> None:
    core = IMPLEMENTATIONS["megatron-core"]
    graphed = as_stated({"cuda_graphs": "yes"}, core)
    assert (graphed.launch_seconds, graphed.collective_call_seconds) == (0.0, 0.0)
    assert as_stated({"cuda_graphs": "no"}, core) == core


def test_columns_say_what_a_trainer_drops_fuses_and_reduces() -> None:
    core = IMPLEMENTATIONS["megatron-core"]
    other = as_stated({"dropout": "yes", "unfused_expert_biases": "yes", "overlap_weight_gradient": "no"}, core)
    assert (other.dropout, other.unfused_expert_biases, other.overlaps_weight_gradient) == (True, True, False)
    assert as_stated({"cudnn_attention": "no"}, core).attention_since_hopper < core.attention_since_hopper


@pytest.mark.parametrize(
    "notes",
    ["CUDA graphs were disabled", "neither CUDA graphs nor TP overlap", "no grouped GEMM"],
)
def test_free_text_decides_nothing(notes: str) -> None:
    cells = {"notes": notes, "source": "NVIDIA-NeMo/Megatron-Bridge (26.08 container)", "num_experts": "8"}
    assert trainer_of(cells, 1, "megatron-core") == trainer_of({}, 1, "megatron-core")
