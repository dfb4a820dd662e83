"""The trainer of a row: named, known of its source, or the usual one of its time."""

from __future__ import annotations

import pytest

from sweeps.table.remarks import with_columns
from sweeps.table.trainer import trainer_of
from train_core.costs import IMPLEMENTATIONS, Implementation


def trainer_as_said(row: dict[str, str], zero_stage: int, given: str | None) -> Implementation:
    return trainer_of(with_columns(row), zero_stage, given)


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
        ({"source": "pytorch/torchtitan benchmarks"}, 3, "torchtitan"),
        ({"source": "argonne-lcf/Megatron-DeepSpeed @ffa", "flash_attention": "yes"}, 1, "megatron-deepspeed"),
        ({"source": "InternLM/InternEvo @c6", "notes": "FSDP rows left out"}, 1, "deepspeed"),
        ({"notes": "Primus (Megatron); median of 500 steps"}, 1, "megatron-core"),
        ({"notes": "NeMo, selective recompute"}, 0, "megatron-core"),
        ({"source": "microsoft/DeepSpeed benchmarks"}, 3, "deepspeed"),
        ({"notes": "with DeepSpeed's ZeRO-3"}, 3, "megatron-deepspeed"),
        ({"series": "lumi ddp", "precision": "bf16", "flash_attention": "yes"}, 0, "fsdp"),
        ({"implementation": "NeMo 2.0"}, 0, "megatron-core"),
        ({"implementation": "FSDP2"}, 3, "fsdp"),
        ({"usual_implementation": "FSDP2"}, 3, "fsdp"),
    ],
)
def test_the_trainer_is_named_or_known_or_usual(cells: dict[str, str], zero_stage: int, name: str) -> None:
    assert trainer_as_said(cells, zero_stage, None).name == name


def test_a_row_says_whether_experts_are_multiplied_one_after_the_other() -> None:
    assert (
        trainer_as_said({"notes": "all-to-all dispatcher, no grouped GEMM"}, 1, "megatron-core").groups_experts is False
    )
    assert trainer_as_said({"notes": "all-to-all dispatcher"}, 1, "megatron-core").groups_experts is True


def test_a_row_says_whether_exchanges_run_beside_another_micro_batch() -> None:
    assert trainer_as_said({"notes": "DeepEP + 1F1B all-to-all overlap"}, 1, "megatron-core").experts_overlap == 1.0
    assert trainer_as_said({"notes": "DeepEP; forced load balance"}, 1, "megatron-core").experts_overlap == 0.0


def test_runs_in_bf16_since_2023_have_flash_attention_where_nothing_says_otherwise() -> None:
    megascale, palm = {"arxiv": "2402.15627", "precision": "bf16"}, {"arxiv": "2204.02311", "precision": "bf16"}
    assert trainer_as_said(megascale, 1, None).name == "megatron-core"
    assert trainer_as_said(megascale, 3, None).name == "fsdp"
    aurora = {"source": "argonne-lcf/Megatron-DeepSpeed @ffa", "precision": "bf16"}
    assert trainer_as_said(aurora, 1, None).flash_attention
    assert not trainer_as_said(palm, 1, None).flash_attention
    assert not trainer_as_said({"arxiv": "2402.15627", "precision": "fp16"}, 1, None).flash_attention
    named = {"implementation": "megatron-deepspeed", **megascale}
    assert not trainer_as_said(named, 1, None).flash_attention
    assert trainer_as_said({**named, "flash_attention": "yes"}, 1, None).flash_attention


def test_attention_is_the_trainers_own_where_the_row_does_not_say() -> None:
    assert trainer_as_said({}, 0, "megatron-core") == IMPLEMENTATIONS["megatron-core"]
    assert trainer_as_said({"flash_attention": "no"}, 0, "megatron-core").flash_attention is False


@pytest.mark.parametrize("named", ["v2", "FA2", "flash_attention_2", "FlashAttention-2", "sdpa (flash v2)"])
def test_the_second_flash_attention_is_the_best_on_ampere_and_old_on_hopper(named: str) -> None:
    read = trainer_as_said({"flash_attention": named}, 0, "deepspeed")
    assert (read.flash_attention, read.attention_rate) == (True, 1.0)
    assert trainer_as_said({"flash_attention": named}, 0, "megatron-core").attention_since_hopper < 1.0
    assert trainer_as_said({"flash_attention": "cudnn"}, 0, "megatron-core").attention_since_hopper == 1.0


@pytest.mark.parametrize(
    ("cells", "overlap"),
    [
        ({"notes": "TP comm overlap (userbuffers)"}, 1.0),
        ({"notes": "fp32 grad accumulation, no TP-comm overlap"}, 0.0),
        ({"model": "Llama 3.1 70B async TP", "implementation": "torchtitan"}, 1.0),
        ({"model": "Llama 3.1 70B vanilla TP", "implementation": "torchtitan"}, 0.0),
        ({"source": "FZJ-JSC/jubench-megatron-lm @d02714d"}, 0.0),
        ({"source": "NVIDIA-NeMo/Megatron-Bridge @067f987df"}, 1.0),
    ],
)
def test_a_row_says_whether_collectives_run_beside_products(cells: dict[str, str], overlap: float) -> None:
    assert trainer_as_said(cells, 1, None if "implementation" in cells else "megatron-core").tensor_overlap == overlap
