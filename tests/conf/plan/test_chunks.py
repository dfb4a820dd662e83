"""How stages are cut into chunks and micro-batches into groups: by hand, and what holds for any numbers."""

from __future__ import annotations

import re
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from conf.errors import InfeasiblePlan
from conf.plan.chunks import chunk_layers, chunk_ranges, group_sizes, least_layers, pipeline_layout
from costs.stages import recomputed_layers
from costs.step.schedule import largest_group
from tests.composed import load
from tests.messages import refused


@some.composite
def cut_stages(draw: some.DrawFn) -> tuple[tuple[int, ...], int]:
    """(layers of each stage, chunks of each): any that can be cut."""
    p, chunks = draw(some.integers(2, 8)), draw(some.integers(1, 6))
    least = [least_layers(stage, p, chunks) for stage in range(p)]
    return tuple(count + draw(some.integers(0, 5)) for count in least), chunks


def test_the_126_layers_of_the_405b_are_cut_as_if_embedding_and_head_were_layers() -> None:
    ranges = chunk_ranges((7, *(8,) * 14, 7), 8)
    assert [len(chunk) for chunk in ranges[0]] == [0, 1, 1, 1, 1, 1, 1, 1]
    assert [len(chunk) for chunk in ranges[15]] == [1, 1, 1, 1, 1, 1, 1, 0]
    assert [chunk.start for chunk in ranges[1]] == [0, 16, 32, 48, 64, 80, 96, 112]


def test_lighter_chunks_are_beside_the_embedding_on_the_first_stage_and_beside_the_head_on_others() -> None:
    assert chunk_layers(7, 3, is_first_stage=True) == (2, 2, 3)
    assert chunk_layers(7, 3, is_first_stage=False) == (3, 2, 2)


@given(cut_stages())
def test_a_layout_in_megatrons_notation_says_the_layers_of_every_part(stages: tuple[tuple[int, ...], int]) -> None:
    layers, chunks = stages
    text = pipeline_layout(layers, chunks)
    for repeated in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):  # first what is in parentheses, as its own parser does
        text = re.sub(repeated, lambda match: match[1] * int(match[2]), text)
    ranges = chunk_ranges(layers, chunks)
    parts = [len(of_stage[chunk]) for chunk in range(chunks) for of_stage in ranges]
    assert text.startswith("E")
    assert text.endswith("L")
    assert [len(part) for part in text[1:-1].split("|")] == parts


@given(cut_stages())
def test_the_pipeline_passes_every_layer_once_in_order(stages: tuple[tuple[int, ...], int]) -> None:
    layers, chunks = stages
    ranges = chunk_ranges(layers, chunks)
    in_order = [ranges[stage][chunk] for chunk in range(chunks) for stage in range(len(layers))]
    assert list(chain.from_iterable(in_order)) == list(range(sum(layers)))
    assert tuple(sum(map(len, of_stage)) for of_stage in ranges) == layers


@given(cut_stages())
def test_only_the_two_ends_of_the_model_may_be_without_a_layer(stages: tuple[tuple[int, ...], int]) -> None:
    layers, chunks = stages
    ends = {(0, 0), (len(layers) - 1, chunks - 1)}
    cut = chunk_ranges(layers, chunks)
    empty = {(i, chunk) for i, stage in enumerate(cut) for chunk, one in enumerate(stage) if not one}
    assert empty <= (ends if chunks > 1 else set())


@given(cut_stages(), some.integers(1, 5))
def test_the_cost_model_counts_the_layers_that_recompute_chunk_by_chunk(
    stages: tuple[tuple[int, ...], int], every: int
) -> None:
    layers, chunks = stages
    for stage, of_stage in enumerate(chunk_ranges(layers, chunks)):
        assert recomputed_layers(layers[stage], chunks, every) == sum(len(chunk[::every]) for chunk in of_stage)


@given(some.integers(1, 100), some.integers(2, 16))
def test_groups_of_micro_batches_are_at_least_as_large_as_there_are_stages(m: int, p: int) -> None:
    sizes = group_sizes(m, p)
    assert sum(sizes) == m
    assert min(sizes) >= min(m, p)
    assert max(sizes) - min(sizes) <= 1
    assert sorted(sizes, reverse=True) == list(sizes)
    assert largest_group(np.array([m]), np.array([p]))[0] == sizes[0]


@pytest.mark.parametrize(
    ("layers", "chunks"),
    [((7, *(8,) * 14, 7), 8), (None, 7), ((*(8,) * 15, 6), 7)],
)
def test_llama_405b_interleaves_on_16_stages(layers: tuple[int, ...] | None, chunks: int) -> None:
    experiment = load(_llama_405b(layers, chunks)).experiment()
    assert sum(map(len, chain.from_iterable(experiment.chunk_ranges))) == 126


def test_eight_chunks_of_evenly_spread_126_layers_are_refused_with_the_ends_that_would_do() -> None:
    settings = load(_llama_405b(None, 8))
    with refused(InfeasiblePlan, "parallel.virtual_pipeline_size"):
        settings.experiment()


def _llama_405b(layers: tuple[int, ...] | None, chunks: int) -> list[str]:
    return [
        "model=llama-3.1-405b",
        "cluster=dgx-h100",
        "cluster.num_nodes=64",
        "precision=bf16",
        "parallel.world_size=512",
        "parallel.tensor_parallel_size=8",
        "parallel.pipeline_parallel_size=16",
        "parallel.schedule=interleaved",
        f"parallel.virtual_pipeline_size={chunks}",
        f"parallel.layers_per_stage={'null' if layers is None else list(layers)}",
        "batch.global_batch_size=148",
        "batch.micro_batch_size=1",
    ]
