"""Memory of pipeline stages: what sharding divides, what is in flight, and where the peak is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.published_rows import row_sets
from costs.setting import Setting
from costs.step.in_flight import chunks_in_flight
from costs.work import work_of
from sweeps.table.prices import PricedRow
from tests.costs.priced import plan_of, priced, setting_of, stage_memories, with_model, with_trainer

REPLICAS, TENSOR = 16, 8
GIBIBYTE = 2**30
STATE = {"weights_bytes": 3, "gradients_bytes": 2, "optimizer_bytes": 1}
"""From which ZeRO stage on replicas share each of them. Source: arXiv 1910.02054, section 5."""


@pytest.fixture
def setting() -> Setting:
    return setting_of("gpt-175b", "selene", "bf16", "megatron-deepspeed")


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize("name", STATE)
def test_zero_shares_out_one_more_state_with_each_stage(setting: Setting, name: str, zero_stage: int) -> None:
    plan: dict[str, Any] = {"tensor_parallel_size": TENSOR, "data_parallel_size": REPLICAS}
    whole, held = (getattr(stage_memories(setting, **plan, zero_stage=stage), name)[0] for stage in (0, zero_stage))
    assert held == pytest.approx(whole / REPLICAS if zero_stage >= STATE[name] else whole, rel=1e-6)


@pytest.mark.slow
def test_a_parameter_in_mixed_precision_takes_the_eighteen_bytes_of_megatron(setting: Setting) -> None:
    """Weight 2, fp32 gradient 4, master 4, two moments 4 each. Source: Megatron Core user guide, Distributed Optimizer:
    18 bytes, of which the distributed optimizer leaves 6 + 12 / d.
    """
    memory = stage_memories(setting, tensor_parallel_size=TENSOR)
    state = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    assert state[0] == 18 * memory.parameters[0]
    memory = stage_memories(setting, tensor_parallel_size=TENSOR, data_parallel_size=REPLICAS, zero_stage=1)
    state = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    assert state[0] == pytest.approx((6 + 12 / REPLICAS) * memory.parameters[0], rel=1e-6)


@pytest.mark.slow
def test_a_parameter_in_fp32_is_its_own_master() -> None:
    memory = stage_memories(setting_of("gpt-175b-proxy", "local", "fp32", "trisweep"))
    state = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    assert state[0] == 16 * memory.parameters[0]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "num_bytes"), [("bf16", 4), ("fp16", 2)])
def test_deepspeed_accumulates_gradients_of_fp16_as_they_are(dtype: str, num_bytes: int) -> None:
    memory = stage_memories(setting_of("gpt-175b", "selene", dtype, "megatron-deepspeed"), tensor_parallel_size=TENSOR)
    assert memory.gradients_bytes[0] == num_bytes * memory.parameters[0]


def test_an_update_that_makes_more_than_passes_hold_decides_what_a_rank_takes() -> None:
    plan: dict[str, Any] = {"tensor_parallel_size": TENSOR, "data_parallel_size": REPLICAS, "zero_stage": 1}
    setting = with_trainer(setting_of("gpt-175b", "selene", "bf16", "deepspeed"), update_working_bytes=14)
    alone, shared = (stage_memories(setting, **plan | {"data_parallel_size": number}) for number in (1, REPLICAS))
    states = alone.weights_bytes + alone.gradients_bytes + alone.optimizer_bytes
    assert (alone.allocated_bytes - states)[0] == 14 * alone.parameters[0]
    plain = stage_memories(with_trainer(setting, update_working_bytes=0), **plan)
    assert shared.allocated_bytes[0] == plain.allocated_bytes[0]


@pytest.mark.slow
def test_under_zero_3_two_layers_are_whole_at_a_time(setting: Setting) -> None:
    plan: dict[str, Any] = {"tensor_parallel_size": TENSOR, "data_parallel_size": REPLICAS}
    sharded, gathered = (stage_memories(setting, **plan, zero_stage=stage).communication_bytes[0] for stage in (2, 3))
    layer = work_of(setting, plan_of(setting, **plan)).layer_parameters[0]
    assert gathered - sharded == 2 * layer * (2 + 4)  # weights in bf16, gradients in fp32


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "expected"), [("1f1b", [8, 7, 5, 1]), ("zero-bubble", [8, 8, 8, 8])])
def test_in_flight_are_as_many_micro_batches_as_stages_follow(
    setting: Setting, schedule: str, expected: list[int]
) -> None:
    """Of ZB-H1 as many on every stage as 1F1B has on the first. Source: arXiv 2401.10241, section 2.2."""
    plans = plan_of(setting, pipeline_parallel_size=8, num_micro_batches=32, schedule=schedule)
    assert [chunks_in_flight(plans, np.array([stage]))[0] for stage in (0, 1, 3, 7)] == expected


@pytest.mark.slow
@pytest.mark.parametrize(("num_stages", "num_chunks"), [(2, 2), (8, 2), (8, 3), (12, 4)])
def test_interleaving_holds_more_on_the_first_stage_by_the_published_factor(
    setting: Setting, num_stages: int, num_chunks: int
) -> None:
    """L layers' worth become L (1 + (p - 1) / (p v)). Source: arXiv 2205.05198, section 4.2.3."""
    plans = plan_of(
        setting,
        pipeline_parallel_size=num_stages,
        virtual_pipeline_size=num_chunks,
        num_micro_batches=8 * num_stages,
        schedule="interleaved",
    )
    layers = chunks_in_flight(plans, np.array([0]))[0] * setting.model.num_layers / (num_stages * num_chunks)
    factor = 1 + (num_stages - 1) / (num_stages * num_chunks)
    assert layers == pytest.approx(setting.model.num_layers * factor)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zero-bubble"])
def test_no_more_is_in_flight_than_there_is(setting: Setting, schedule: str) -> None:
    chunks = 2 if schedule == "interleaved" else 1
    plan: dict[str, Any] = {"pipeline_parallel_size": 8, "virtual_pipeline_size": chunks, "num_micro_batches": 8}
    in_flight = chunks_in_flight(plan_of(setting, **plan, schedule=schedule), np.arange(8))
    assert in_flight.max() <= 8 * chunks


@pytest.mark.slow
def test_activations_are_those_of_the_layers_and_the_output_of_each_micro_batch_in_flight(setting: Setting) -> None:
    """A middle stage of 12 layers, 6 micro-batches in flight. Of the output DeepSpeed keeps a tensor rank's part."""
    plan: dict[str, Any] = {
        "tensor_parallel_size": TENSOR,
        "pipeline_parallel_size": 8,
        "num_micro_batches": 32,
        "recompute": "full",
    }
    hidden = 2048 * 12288 * 2
    assert stage_memories(setting, **plan).activations_bytes[2] == 6 * (12 * hidden + hidden // TENSOR)
    whole = with_trainer(setting, kept_outputs="whole")
    assert stage_memories(whole, **plan).activations_bytes[2] == 6 * (12 * hidden + hidden)
    none = with_trainer(setting, kept_outputs="none")
    assert stage_memories(none, **plan).activations_bytes[2] == 6 * 12 * hidden


@pytest.mark.slow
def test_without_outputs_the_first_of_35_stages_of_the_530b_saves_what_the_paper_says() -> None:
    """2.73 GB, in units of 2^30. Source: arXiv 2205.05198."""
    setting = with_model(setting_of("gpt-1t", "selene"), num_layers=105, hidden_size=20480, num_attention_heads=128)
    plan: dict[str, Any] = {"tensor_parallel_size": TENSOR, "pipeline_parallel_size": 35, "num_micro_batches": 280}
    kept, freed = (
        stage_memories(with_trainer(setting, kept_outputs=outputs), **plan).activations_bytes[0]
        for outputs in ("whole", "none")
    )
    assert (kept - freed) / GIBIBYTE == pytest.approx(2.73, abs=0.005)


@pytest.mark.slow
def test_the_last_stage_keeps_the_inputs_of_the_final_norm_and_of_the_head(setting: Setting) -> None:
    plan: dict[str, Any] = {
        "tensor_parallel_size": TENSOR,
        "pipeline_parallel_size": 8,
        "num_micro_batches": 32,
        "recompute": "full",
    }
    hidden = 2048 * 12288 * 2
    assert stage_memories(setting, **plan).activations_bytes[7] == 12 * hidden + 2 * hidden


@pytest.mark.slow
@pytest.mark.parametrize(("sequence", "num_bytes"), [(False, 2), (True, 2 / TENSOR + 1)])
def test_a_stage_receives_two_activations_and_gathers_one_sequence(
    setting: Setting, sequence: bool, num_bytes: float
) -> None:
    """In whole hidden states: a share of each under sequence parallelism, which has one of them whole at a time."""
    plan: dict[str, Any] = {"tensor_parallel_size": TENSOR, "pipeline_parallel_size": 8, "num_micro_batches": 32}
    memory = stage_memories(setting, **plan, sequence_parallel=sequence)
    assert memory.communication_bytes[0] == num_bytes * 2048 * 12288 * 2


@pytest.mark.slow
def test_only_the_last_stage_holds_logits_and_only_a_pipeline_receives(setting: Setting) -> None:
    several = stage_memories(setting, pipeline_parallel_size=8, num_micro_batches=32)
    assert (several.logits_bytes > 0).tolist() == [False] * 7 + [True]
    assert np.all(several.communication_bytes > 0)
    assert np.all(stage_memories(setting).communication_bytes == 0)


@pytest.mark.slow
def test_the_worst_stage_is_the_one_that_holds_most(setting: Setting) -> None:
    """The first keeps most micro-batches; without any it is the last, which has the logits of a long micro-batch."""
    plan: dict[str, Any] = {"tensor_parallel_size": TENSOR, "pipeline_parallel_size": 8}
    for sizes, expected in (
        ({"num_micro_batches": 64}, 0),
        ({"num_micro_batches": 1, "micro_batch_size": 8, "recompute": "full"}, 7),
    ):
        prices = priced(setting, **plan, **sizes)
        totals = np.broadcast_to(stage_memories(setting, **plan, **sizes).total_bytes, 8)
        assert prices.worst_stage[0] == np.argmax(totals) == expected
        assert prices.peak_memory_bytes[0] == totals.max()


@pytest.mark.slow
def test_gaps_grow_with_activations_and_are_not_allocated() -> None:
    """Jean Zay's cluster file has both: a share of the activations on top of what the framework takes."""
    setting = setting_of("bloom-176b", "jean-zay")
    memory, cluster = stage_memories(setting, tensor_parallel_size=TENSOR, recompute="full"), setting.cluster
    expected = cluster.reserved_memory_bytes + int(memory.activations_bytes[0] * cluster.fragmentation)
    assert cluster.fragmentation > 0
    assert memory.reserved_bytes[0] == expected


@pytest.fixture(scope="module")
def frontier_log() -> list[PricedRow]:
    return row_sets()["frontier-memory"]


@pytest.mark.slow
def test_allocated_memory_of_every_stage_is_within_2_percent_of_the_frontier_log(frontier_log: list[PricedRow]) -> None:
    """Published: torch's maximum on each of 16 stages, log 405287 of the study; nothing is fitted on it."""
    rows = [(row.prediction, row.record.row) for row in frontier_log if row.prediction]
    assert {prediction.configuration.stage for prediction, _ in rows} == set(range(16))
    for prediction, published in rows:
        assert prediction.allocated_bytes / GIBIBYTE == pytest.approx(float(published["memory_gib"]), rel=0.02)
