"""What an error advises is right: followed word for word, the same complaint does not come again."""

from __future__ import annotations

import re

import pytest

from conf.errors import ConfigError
from conf.nearest import largest_share, nearest_divisor, padded_vocabulary
from tests.composed import load

NODES = ["cluster=local", "cluster.num_nodes=1", "cluster.devices_per_node=24"]
TENSOR_2 = ["parallel.world_size=2", "parallel.tensor_parallel_size=2"]


@pytest.mark.parametrize(
    ("overrides", "remedy"),
    [
        (
            [*TENSOR_2, "model.vocab_size=50257"],
            "Pad model.vocab_size to 50304, or use parallel.tensor_parallel_size=1.",
        ),
        (
            ["parallel.world_size=12", "parallel.tensor_parallel_size=6", "model.num_attention_heads=12"]
            + ["model.hidden_size=48", "model.num_query_groups=4", "model.vocab_size=258"],
            "Use model.num_query_groups=6, or use parallel.tensor_parallel_size=2.",
        ),
        ([*TENSOR_2, "model.ffn_hidden_size=127"], "Use model.ffn_hidden_size=128, or use parallel.tensor"),
        (
            [*TENSOR_2, "model.seq_length=31", "parallel.sequence_parallel=true"],
            "Use model.seq_length=32, or use parallel.tensor_parallel_size=1 with parallel.sequence_parallel=false.",
        ),
        (["parallel.world_size=3", "parallel.tensor_parallel_size=3"], "Use parallel.tensor_parallel_size=1."),
        (
            ["parallel.world_size=3", "parallel.tensor_parallel_size=2"],
            "Use parallel.world_size=4 or another multiple of 2, or use smaller tensor",
        ),
        (["parallel.world_size=3"], "Use batch.global_batch_size=9 or another multiple of 3."),
        (["model.num_attention_heads=5"], "Use model.num_attention_heads=4, or give"),
        (["model.num_query_groups=3"], "Use model.num_query_groups=2."),
        (
            ["parallel.world_size=2", "parallel.pipeline_parallel_size=2", "parallel.schedule=interleaved"]
            + ["parallel.virtual_pipeline_size=6", "model.num_layers=8"],
            "Use parallel.virtual_pipeline_size=4, and parallel.layers_per_stage=null.",
        ),
        (
            ["parallel.world_size=2", "parallel.pipeline_parallel_size=2", "parallel.schedule=interleaved"]
            + ["parallel.virtual_pipeline_size=3", "model.num_layers=8", "parallel.layers_per_stage=[7,1]"],
            "Use parallel.layers_per_stage=null.",
        ),
    ],
)
def test_a_remedy_that_names_a_value_is_right(overrides: list[str], remedy: str) -> None:
    refused = complaint_of(overrides)
    assert refused is not None
    assert refused.remedy.startswith(remedy)
    advised = re.sub(r"Pad ([\w.]+) to (\d+)", r"\1=\2", refused.remedy)
    for alternative in advised.split(", or "):
        if followed := re.findall(r"[a-z_.]+=\w+", alternative):
            left = complaint_of([*overrides, *followed])
            assert left is None or left.problem != refused.problem, f"{followed} does not help"


def complaint_of(overrides: list[str]) -> ConfigError | None:
    try:
        load([*NODES, *overrides]).experiment()
    except ConfigError as error:
        return error
    return None


def test_a_vocabulary_is_padded_so_that_every_tensor_size_of_a_sweep_divides_it() -> None:
    assert [padded_vocabulary(50257, size) for size in (1, 2, 4, 8, 16)] == [50304] * 5
    assert padded_vocabulary(50257, 3) % 3 == 0


def test_the_nearest_divisor_is_found_also_of_large_numbers() -> None:
    assert nearest_divisor(5, 32) == 4
    assert nearest_divisor(100, 64) == 64
    assert nearest_divisor(7, 10**12) == 8


def test_a_remedy_for_a_number_with_digits_too_many_takes_no_time() -> None:
    assert nearest_divisor(96, 4 * 10**16 + 1) == 41
    assert nearest_divisor(96, 10**30 + 57) == 1
    assert largest_share([8], below=10**15) == 8
