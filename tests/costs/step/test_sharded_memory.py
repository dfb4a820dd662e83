"""Memory of trainers that share everything out, beside what was published of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conf.units import GIBIBYTE
from tests.costs.priced import priced, setting_of, stage_memories

LLAMA: dict[str, Any] = {"micro_batch_size": 2, "zero_stage": 3, "recompute": "selective"}


@pytest.mark.parametrize(("num_devices", "published"), [(8, 77.0), (128, 62.0)])
def test_torchtitans_8b_takes_what_its_notes_say(num_devices: int, published: float) -> None:
    """Published: benchmarks/llama3_h100_202412_torchtitan.md, compiled, tables 1 and 3. Nothing is fitted on them."""
    setting = setting_of("llama-3.1-8b", "grand-teton", trainer="torchtitan")
    memory = stage_memories(setting, **LLAMA, data_parallel_size=num_devices)
    assert memory.total_bytes[0] / GIBIBYTE == pytest.approx(published, rel=0.05)


def test_fsdp_shares_out_16_bytes_a_parameter() -> None:
    """An fp32 weight, its gradient and two moments; what is computed with is gathered layer by layer."""
    memory = stage_memories(setting_of("llama-3.1-8b", "grand-teton", trainer="fsdp"), **LLAMA, data_parallel_size=64)
    shared = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    assert shared[0] == pytest.approx(16 * memory.parameters[0] / 64, rel=1e-6)


def test_in_a_pipeline_fsdp_keeps_gathered_weights_and_adds_up_whole_gradients() -> None:
    """torch's schedules let FSDP2 scatter gradients after the last micro-batch alone."""
    setting = setting_of("llama-3.1-8b", "grand-teton", trainer="torchtitan")
    plan: dict[str, Any] = {"pipeline_parallel_size": 4, "num_micro_batches": 8, "data_parallel_size": 16}
    memory = stage_memories(setting, **plan, zero_stage=2)
    held = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    assert held[0] == pytest.approx((2 + 4 + 16 / 16) * memory.parameters[0], rel=1e-6)


def test_optimizer_state_on_the_host_takes_nothing_of_the_device() -> None:
    setting = setting_of("llama-3.1-8b", "dgx-h100", trainer="deepspeed")
    there, here = (
        stage_memories(replace(setting, offload_optimizer=offloads), data_parallel_size=8, zero_stage=2)
        for offloads in (True, False)
    )
    assert there.optimizer_bytes[0] == 0
    assert here.total_bytes[0] - there.total_bytes[0] == here.optimizer_bytes[0] > 0


def test_deepspeed_gathers_no_more_than_its_limit_or_the_largest_matrix() -> None:
    """The 530B of arXiv 2104.04473, table 2, whose layers have 5 billion parameters, ran on 80 GB."""
    setting = setting_of("gpt-1t", "selene", "fp16", "megatron-deepspeed")
    memory = stage_memories(setting, data_parallel_size=512, zero_stage=3, recompute="full")
    model = setting.model
    assert memory.communication_bytes[0] == model.ffn_hidden_size * model.hidden_size * (2 + 2)


def test_the_host_updates_at_its_own_pace() -> None:
    """34 bytes of every parameter that a rank owns, through its share of the host."""
    setting = setting_of("llama-3.1-8b", "dgx-h100", trainer="deepspeed")
    plan: dict[str, Any] = {"data_parallel_size": 8, "zero_stage": 2}
    prices = priced(replace(setting, offload_optimizer=True), **plan)
    owned = stage_memories(setting, **plan).parameters[0] / 8
    expected = owned * setting.implementation.optimizer_bytes_per_parameter / setting.cluster.host_bytes_per_second
    assert prices.step.optimizer_seconds[0] == pytest.approx(expected)
    assert prices.step.optimizer_seconds[0] > 10 * priced(setting, **plan).step.optimizer_seconds[0]


@pytest.mark.parametrize("trainer", ["trisweep", "deepspeed"])
def test_one_replica_shards_nothing_and_gathers_nothing(trainer: str) -> None:
    setting = setting_of("llama-3.1-8b", "dgx-h100", trainer=trainer)
    whole, alone = (stage_memories(setting, tensor_parallel_size=8, zero_stage=stage) for stage in (0, 3))
    assert alone.total_bytes == whole.total_bytes
