"""How a row lays its model over devices, in the words of several trainers."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError
from conf.types.schema import ParallelPlan
from sweeps.table.layout import MANY_MICRO_BATCHES, batch_of, parallel_of
from tests.messages import refused

SIZES = {"layers": "32", "num_gpus": "64", "tp": "1", "pp": "1", "micro_batch": "2", "global_batch": ""}


def plan(**cells: str) -> ParallelPlan:
    return parallel_of({**SIZES, **cells})


def batch(**cells: str) -> int:
    return batch_of({**SIZES, **cells}, plan(**cells)).global_batch_size


@pytest.mark.parametrize(
    ("written", "stage"),
    [
        ("1.0", 1),
        ("ddp", 0),
        ("distributed optimizer", 1),
        ("FSDP2", 3),
        ("3 (FSDP2)", 3),
        ("FSDP (SHARD_GRAD_OP)", 2),
        ("ZeRO-3", 3),
        ("zero1 (8 ranks)", 1),
        ("ZeRO stage 2", 2),
        ("FULL_SHARD", 3),
        ("NO_SHARD", 0),
    ],
)
def test_sharding_is_read_in_the_words_of_its_trainers(written: str, stage: int) -> None:
    assert plan(zero_stage=written).zero_stage == stage


def test_beside_a_pipeline_fsdp2_keeps_what_it_has_gathered() -> None:
    assert plan(zero_stage="FSDP2", pp="8").zero_stage == 2
    assert plan(zero_stage="FSDP2", pp="8", reshard_after_forward="yes").zero_stage == 3
    assert plan(zero_stage="3", pp="8", reshard_after_forward="no").zero_stage == 2
    assert plan(zero_stage="3", pp="8").zero_stage == 3


@pytest.mark.parametrize(
    ("cells", "size"),
    [
        ({"zero_group_size": "8"}, 8),
        ({"zero_group_size": "64"}, None),  # all replicas
        ({"zero_stage": "HSDP"}, 8),
        ({"zero_stage": "HYBRID_SHARD"}, 8),
        ({"zero_stage": "HSDP", "gpus_per_node": "4"}, 4),
        ({}, None),
    ],
)
def test_a_smaller_group_that_shares_the_optimizer_is_read(cells: dict[str, str], size: int | None) -> None:
    assert plan(**{"zero_stage": "1", **cells}).zero_group_size == size


@pytest.mark.parametrize(
    ("written", "recompute", "every"),
    [
        ("selective (per op)", "selective", 1),
        ("norm/activation modules", "pointwise", 1),
        ("layernorm, mlp_act", "pointwise", 1),
        ("selective (every 2nd layer)", "full", 2),
        ("full", "full", 1),
        ("full (uniform, 1)", "full", 1),
        ("True", "full", 1),
        ("selective: core_attn", "selective", 1),
        ("selective (layernorm, moe_act)", "pointwise", 1),
    ],
)
def test_recomputation_is_read_in_the_words_of_its_trainers(written: str, recompute: str, every: int) -> None:
    found = plan(recompute=written)
    assert (found.recompute, found.recompute_every) == (recompute, every)


@pytest.mark.parametrize(
    "written", ["full (block, 4 layers)", "selective (mlp)", "mlp, moe", "selective (moe, layernorm)"]
)
def test_recomputation_of_a_part_that_is_not_modelled_is_refused(written: str) -> None:
    with refused(ConfigError, "recompute"):
        plan(recompute=written)


def test_beside_experts_the_feed_forward_part_is_that_of_the_few_layers_without_them() -> None:
    assert plan(recompute="mla_up_proj, mlp", num_experts="256").recompute == "pointwise"


@pytest.mark.parametrize(
    ("cells", "experts", "tensor"),
    [
        ({"tp": "4", "ep": "2"}, 2, None),
        ({"tp": "2", "pp": "4", "ep": "16"}, 16, 1),  # 128 ranks of the first kind do not exist
        ({"tp": "2", "ep": "8", "etp": "1"}, 8, 1),
        ({"tp": "2", "etp": "1"}, 1, None),
    ],
)
def test_experts_are_cut_like_the_rest_while_there_are_devices_for_it(
    cells: dict[str, str], experts: int, tensor: int | None
) -> None:
    found = plan(**cells)
    assert (found.expert_parallel_size, found.expert_tensor_parallel_size) == (experts, tensor)


def test_a_step_without_a_stated_batch_is_one_micro_batch_of_each_replica() -> None:
    assert batch() == 2 * 64
    assert batch(tp="4", cp="2") == 2 * 8


@pytest.mark.parametrize(
    ("cells", "key"),
    [
        ({"micro_batch": "100000000"}, "micro_batch"),
        ({"micro_batch": "", "local_batch": "100000000"}, "local_batch"),
    ],
)
def test_more_sequences_than_any_step_has_are_told_by_their_column(cells: dict[str, str], key: str) -> None:
    with refused(ConfigError, key):
        batch(**cells)


def test_fewer_devices_than_one_replica_takes_are_left_for_the_setup_to_refuse() -> None:
    assert batch(cp="128") == 2


def test_a_rate_without_the_reduction_of_gradients_is_that_of_many_micro_batches() -> None:
    assert batch(grad_reduce_excluded="yes") == 2 * 64 * MANY_MICRO_BATCHES


@pytest.mark.parametrize(
    ("cells", "layers"),
    [
        ({"layers": "126", "pp": "16", "vpp": "7", "num_gpus": "512"}, None),
        ({"layers": "126", "pp": "16", "vpp": "4", "num_gpus": "512"}, (7, *[8] * 14, 7)),
        ({"layers": "126", "pp": "16", "vpp": "8", "num_gpus": "512"}, (7, *[8] * 14, 7)),
        ({"layers": "126", "pp": "8"}, None),
        ({"layers": "80", "pp": "4", "vpp": "5"}, None),
        ({"layers": "78", "pp": "4", "vpp": "5"}, (19, 20, 20, 19)),
        ({"layers": "61", "pp": "4"}, None),
    ],
)
def test_embedding_and_head_count_as_layers_where_chunks_are_not_equal_otherwise(
    cells: dict[str, str], layers: tuple[int, ...] | None
) -> None:
    assert plan(**cells).layers_per_stage == layers


def test_tensor_ranks_share_sequences_beside_experts_unless_the_row_says_otherwise() -> None:
    assert plan(tp="2", ep="8").sequence_parallel is True
    assert plan(tp="2", ep="8", sequence_parallel="no").sequence_parallel is False
    assert plan(tp="2").sequence_parallel is False


def test_a_local_batch_is_cut_into_as_many_micro_batches_as_stages() -> None:
    cells = {"pp": "8", "micro_batch": "", "local_batch": "32"}
    found = batch_of({**SIZES, **cells}, plan(**cells))
    assert (found.micro_batch_size, found.global_batch_size) == (4, 32 * 8)
