"""The whole world on paper: what every stage of a pipeline counts adds up to what formulas say of the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.errors import ConfigError
from conf.plan.experiment import Experiment
from costs import estimate, hardware_flops
from costs.counts.buckets import parameters_of
from costs.counts.traffic import stage_traffic
from tests.composed import load
from tests.messages import refused
from train_core.rehearsal.counts import enough_micro_batches
from train_core.rehearsal.observer import FLOPS
from train_core.rehearsal.rehearse import rehearse
from train_core.rehearsal.stage import rehearse_stage, take_step

SMALL = ["model=tiny", "model.num_layers=4", "cluster=frontier", "precision=bf16", "batch.global_batch_size=32"]


def two_stages(*more: str) -> Experiment:
    """Two stages of two layers, two tensor ranks, four replicas with eight micro-batches each."""
    sizes = ["parallel.pipeline_parallel_size=2", "parallel.tensor_parallel_size=2", "parallel.world_size=16"]
    return load([*SMALL, *sizes, *more]).experiment()


@pytest.mark.thorough  # than costs/test_rehearsal
@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 2])
def test_flops_of_all_stages_add_up_to_the_formula(every: int) -> None:
    """Of eight micro-batches only as many are taken as fill the stages."""
    experiment = two_stages("parallel.recompute=full", f"parallel.recompute_every={every}")
    assert experiment.num_micro_batches == 8
    formula = hardware_flops(experiment.model, 32, "full", 4 // every)
    assert 8 * sum(rehearse_stage(experiment, stage).flops for stage in (0, 1)) == formula
    assert estimate(experiment).hardware_flops == formula


@pytest.mark.thorough  # than the flops of all stages
@pytest.mark.slow
def test_stages_that_do_exactly_the_same_are_rehearsed_once_in_processes_of_their_own() -> None:
    """Under GPipe every stage between the first and the last makes the same passes in the same order."""
    sizes = ["parallel.pipeline_parallel_size=4", "parallel.world_size=8", "parallel.schedule=gpipe"]
    experiment = load([*SMALL, *sizes, "batch.global_batch_size=4"]).experiment()
    told = list[tuple[int, int]]()
    found = rehearse(experiment, lambda done, total: told.append((done, total)))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert (found.num_rehearsed, [stage.stage for stage in found.stages]) == (3, [0, 1, 2, 3])
    assert found.stages[2] == rehearse_stage(experiment, 2)
    assert found.flops == hardware_flops(experiment.model, 4, experiment.parallel.recompute, 4)


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble", "interleaved"])
def test_what_is_left_out_of_a_step_is_what_a_further_micro_batch_would_do(schedule: str) -> None:
    """Against the same stage with all eight micro-batches, memory included."""
    chunks = ["parallel.virtual_pipeline_size=2"] if schedule == "interleaved" else []
    experiment = two_stages(f"parallel.schedule={schedule}", "parallel.zero_stage=1", *chunks)
    for stage in (0, 1):
        assert enough_micro_batches(experiment, stage) < 8
        few = rehearse_stage(experiment, stage)
        memory, amounts = take_step(experiment, stage, 8)
        assert few.memory == memory
        assert few.flops == sum(of_one[FLOPS] for of_one in amounts.values())
        assert few.traffic == stage_traffic(experiment, stage)


@pytest.mark.slow
def test_nothing_is_compiled_or_read_though_a_training_would(tmp_path: Path) -> None:
    """Neither token ids, which are not there, nor Hugging Face weights, which are no weights."""
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.safetensors").write_text("not a tensor")
    absent = ["data.source=megatron", f"data.path={tmp_path}/absent"]
    reading = two_stages("training.compile_layers=true", f"checkpoint.load={weights}", *absent)
    assert rehearse_stage(reading, 1) == rehearse_stage(two_stages(), 1)
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


@pytest.mark.thorough  # than costs/test_exact
@pytest.mark.slow
def test_dropout_keeps_a_byte_of_mask_for_each_value_that_it_may_drop() -> None:
    """After attention and after the feed-forward layer; scores are dropped in the kernel, which keeps none of them."""
    plain = ["parallel.recompute=none", "batch.global_batch_size=8", "sweep=22b", "parallel.tensor_parallel_size=1"]
    without, dropping = (load([*plain, f"training.dropout={p}"]).experiment() for p in (0.0, 0.1))
    before, after = (rehearse_stage(experiment, 7) for experiment in (without, dropping))
    assert (before.flops, before.traffic) == (after.flops, after.traffic)
    tokens = without.model.seq_length * without.batch.micro_batch_size
    masks = 2 * without.layers_per_stage[7] * tokens * without.model.hidden_size
    assert after.memory.activations_bytes - before.memory.activations_bytes == masks


def test_what_the_trainer_cannot_run_is_not_rehearsed() -> None:
    with refused(ConfigError, "model.hidden_size"):
        rehearse(load([*SMALL, "model.seq_length=1000000000"]).experiment())


@pytest.mark.thorough  # than costs/test_rehearsal, layer by layer
@pytest.mark.slow
def test_under_zero_3_a_rank_keeps_its_rows_in_fp32_and_layers_only_pass() -> None:
    """Eight replicas of four layers: what wraps a shard is no memory of its own."""
    experiment = load([*SMALL, "parallel.world_size=8", "parallel.zero_stage=3"]).experiment()
    memory = rehearse_stage(experiment, 0).memory
    share = sum(one.length for one in parameters_of(experiment, 0)) // 8 * 4
    assert (memory.weights_bytes, memory.gradients_bytes) == (share, share)
    assert memory.optimizer_bytes == pytest.approx(2 * share, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [0, 1, 2])
def test_tensor_ranks_share_out_the_experts_that_they_all_hold(zero_stage: int) -> None:
    """With one data-parallel replica: each tensor rank has other tokens for the same whole experts."""
    ranks = [f"parallel.{axis}_size=4" for axis in ("world", "tensor_parallel")]
    whole = ["parallel.expert_parallel_size=1", "parallel.expert_tensor_parallel_size=1"]
    model = ["model=mixtral-8x7b", "model.num_layers=2", "model.hidden_size=1024", "model.seq_length=512"]
    run = ["cluster=dgx-h100", "precision=bf16", "batch.global_batch_size=4", "batch.micro_batch_size=1"]
    plan = ["parallel.sequence_parallel=true", "parallel.recompute=full", f"parallel.zero_stage={zero_stage}"]
    experiment = load([*model, *run, *ranks, *whole, *plan]).experiment()
    priced, rehearsed = estimate(experiment).stages[0], rehearse_stage(experiment, 0)
    held = rehearsed.memory
    assert held.weights_bytes == priced.weights_bytes
    assert held.optimizer_bytes == pytest.approx(priced.optimizer_bytes, rel=0.01)
    # Under ZeRO-2 the buckets that are whole meanwhile are rounded up.
    assert (
        held.gradients_bytes
        <= 1.01 * priced.gradients_bytes
        <= (1.06 if zero_stage == 2 else 1.02) * held.gradients_bytes
    )
    assert rehearsed.traffic == stage_traffic(experiment, 0)
