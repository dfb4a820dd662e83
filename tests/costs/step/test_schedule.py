"""The closed forms of pipelines against a simulation pass by pass.

Where a closed form is not exact, the bound is a little more than the largest deviation seen on 7,000 random pipelines.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from conf.plan.chunks import chunk_layers
from costs.stages import StageGroup
from costs.step.schedule import INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE, MicroBatchSeconds, pipeline_seconds
from tests.costs.pipeline_events import (
    Pass,
    Stage,
    interleaved_passes,
    one_f_one_b_passes,
    scaled,
    simulated_seconds,
    simulated_seconds_of_chunks,
    zero_bubble_passes,
)

MOST_STAGES = 8
fifty = settings(max_examples=50)
scales = some.floats(0.7, 1.5)
stages = some.builds(  # backward takes 1.4 to 2.3 times the forward, as without recomputation
    lambda forward, inputs, weights: Stage(forward, forward * inputs, forward * weights),
    some.floats(0.5, 2),
    some.floats(0.8, 1.3),
    some.floats(0.6, 1),
)
lengths = some.integers(1, MOST_STAGES)
counts = some.integers(1, 24)


def closed_form(
    stages: list[Stage],
    num_micro_batches: int,
    num_chunks: int,
    schedule: int,
    layers_per_stage: list[int] | None = None,
) -> float:
    """Every stage as a group of its own."""
    p, layers = len(stages), layers_per_stage or [num_chunks] * len(stages)
    groups = [
        StageGroup(np.array([1]), np.array([i]), np.array([layers[i]]), np.array([i == 0]), np.array([i == p - 1]))
        for i in range(p)
    ]
    seconds = [
        MicroBatchSeconds(np.array([one.forward]), np.array([one.input_gradient]), np.array([one.weight_gradient]))
        for one in stages
    ]
    sizes = (np.array([p]), np.array([num_micro_batches]), np.array([num_chunks]), np.array([schedule]))
    return float(pipeline_seconds(groups, seconds, *sizes)[0][0])


def one_f_one_b(stages: list[Stage], num_micro_batches: int) -> tuple[float, float]:
    """Closed form and simulation."""
    passes = [one_f_one_b_passes(i, len(stages), num_micro_batches) for i in range(len(stages))]
    return closed_form(stages, num_micro_batches, 1, ONE_F_ONE_B), simulated_seconds(stages, passes, 1)


def interleaved(stages: list[Stage], m: int, num_chunks: int) -> tuple[float, float]:
    passes = [interleaved_passes(i, len(stages), m, num_chunks) for i in range(len(stages))]
    return closed_form(stages, m, num_chunks, INTERLEAVED), simulated_seconds(stages, passes, num_chunks)


def interleaved_layers(
    layer: Stage, layers_per_stage: list[int], m: int, num_chunks: int, embedding: float, head: float
) -> tuple[float, float]:
    """Chunks by `conf.plan.chunks`; the first one also embeds and the last one has the head, in units of a layer."""
    last = len(layers_per_stage) - 1
    shares = [
        [float(n) for n in chunk_layers(layers, num_chunks, is_first_stage=stage == 0)]
        for stage, layers in enumerate(layers_per_stage)
    ]
    shares[0][0] += embedding
    shares[last][-1] += head
    passes = [interleaved_passes(i, last + 1, m, num_chunks) for i in range(last + 1)]
    whole = [scaled(layer, sum(share)) for share in shares]
    closed = closed_form(whole, m, num_chunks, INTERLEAVED, layers_per_stage)
    chunks = [[scaled(layer, share) for share in of_stage] for of_stage in shares]
    return closed, simulated_seconds_of_chunks(chunks, passes)


def zero_bubble(stages: list[Stage], num_micro_batches: int) -> tuple[float, float]:
    passes = [zero_bubble_passes(i, len(stages), num_micro_batches) for i in range(len(stages))]
    return closed_form(stages, num_micro_batches, 1, ZERO_BUBBLE), simulated_seconds(stages, passes, 1)


def with_ends(stage: Stage, num_stages: int, first: float, last: float) -> list[Stage]:
    """Equal stages but for the ends, which also embed and hold the head."""
    inner = [stage] * (num_stages - 2)
    return [scaled(stage, first), *inner, scaled(stage, last)] if num_stages > 1 else [scaled(stage, first * last)]


def test_the_simulation_gives_the_textbook_bubble() -> None:
    """Arithmetic by hand: 3 stages, 4 micro-batches, (p - 1) (forward + backward) idle."""
    stages = [Stage(1.0, 1.0, 1.0)] * 3
    passes = [one_f_one_b_passes(i, 3, 4) for i in range(3)]
    assert simulated_seconds(stages, passes, 1) == 3.0 * (4 + 3 - 1)
    assert passes[2][:4] == [
        Pass("forward", 0, 0),
        Pass("backward", 0, 0),
        Pass("forward", 0, 1),
        Pass("backward", 0, 1),
    ]


@fifty
@given(stages, lengths, counts)
def test_equal_stages_under_1f1b_are_exact(stage: Stage, num_stages: int, num_micro_batches: int) -> None:
    closed, simulated = one_f_one_b([stage] * num_stages, num_micro_batches)
    assert closed == pytest.approx(simulated)


@fifty
@given(some.lists(stages, min_size=1, max_size=MOST_STAGES), counts)
def test_uneven_stages_under_1f1b_are_a_lower_bound_that_is_close(uneven: list[Stage], num_micro_batches: int) -> None:
    closed, simulated = one_f_one_b(uneven, num_micro_batches)
    assert simulated * 0.93 <= closed <= simulated * (1 + 1e-9)


@fifty
@given(stages, lengths, counts, scales, scales)
def test_heavier_and_lighter_ends_under_1f1b_are_close(
    stage: Stage, num_stages: int, num_micro_batches: int, first: float, last: float
) -> None:
    closed, simulated = one_f_one_b(with_ends(stage, num_stages, first, last), num_micro_batches)
    assert simulated * 0.96 <= closed <= simulated * (1 + 1e-9)


@fifty
@given(stages, some.integers(2, MOST_STAGES), counts, some.integers(2, 4))
def test_equal_stages_interleaved_are_exact_with_any_number_of_micro_batches(
    stage: Stage, num_stages: int, num_micro_batches: int, num_chunks: int
) -> None:
    closed, simulated = interleaved([stage] * num_stages, num_micro_batches, num_chunks)
    assert closed == pytest.approx(simulated)


@fifty
@given(
    stages, some.integers(2, MOST_STAGES), some.integers(1, 3), some.integers(0, 3), some.integers(2, 4), scales, scales
)
def test_heavier_ends_interleaved_are_close(
    stage: Stage, num_stages: int, num_groups: int, more: int, num_chunks: int, first: float, last: float
) -> None:
    """With at least as many micro-batches as stages."""
    uneven = with_ends(stage, num_stages, first, last)
    closed, simulated = interleaved(uneven, num_stages * num_groups + more, num_chunks)
    assert simulated * (1 - 1e-9) <= closed <= simulated * 1.16


@fifty
@given(some.floats(0.5, 2), some.floats(1, 2.3), some.floats(0.6, 1), some.integers(2, MOST_STAGES), counts)
def test_equal_stages_without_bubbles_are_exact_where_there_are_as_many_micro_batches_as_stages(
    forward: float, inputs: float, weights: float, num_stages: int, more: int
) -> None:
    stage = Stage(forward, forward * inputs, forward * weights)
    closed, simulated = zero_bubble([stage] * num_stages, num_stages + more - 1)
    assert closed == pytest.approx(simulated)


@fifty
@given(stages, some.integers(2, MOST_STAGES), counts)
def test_equal_stages_without_bubbles_are_close_with_any_number_of_micro_batches(
    stage: Stage, num_stages: int, num_micro_batches: int
) -> None:
    closed, simulated = zero_bubble([stage] * num_stages, num_micro_batches)
    assert simulated * 0.94 <= closed <= simulated * (1 + 1e-9)


@fifty
@given(stages, some.integers(2, MOST_STAGES), counts, scales, scales)
def test_heavier_ends_without_bubbles_are_close(
    stage: Stage, num_stages: int, num_micro_batches: int, first: float, last: float
) -> None:
    closed, simulated = zero_bubble(with_ends(stage, num_stages, first, last), num_micro_batches)
    assert simulated * 0.93 <= closed <= simulated * 1.22


@fifty
@given(
    stages,
    some.integers(3, MOST_STAGES),
    some.integers(1, 3),
    some.integers(2, 4),
    some.tuples(some.booleans(), some.booleans()),
    some.integers(0, 16),
    some.floats(0.0, 0.2),
    some.floats(0.0, 1.2),
)
def test_chunks_of_which_only_the_ends_lack_a_layer_are_close(
    layer: Stage,
    num_stages: int,
    layers_of_chunk: int,
    num_chunks: int,
    lighter: tuple[bool, bool],
    more: int,
    embedding: float,
    head: float,
) -> None:
    """As if embedding and head were a layer each. Two stages of a layer are worse, as is what is uneven inside."""
    layers = [layers_of_chunk * num_chunks] * num_stages
    layers[0] -= lighter[0]
    layers[-1] -= lighter[1]
    closed, simulated = interleaved_layers(layer, layers, num_stages + more, num_chunks, embedding, head)
    assert simulated * 0.93 <= closed <= simulated * 1.18


@fifty
@given(
    stages, some.integers(3, MOST_STAGES), some.integers(2, 5), some.integers(1, 12), some.integers(0, 16), some.data()
)
def test_chunks_that_are_uneven_inside_the_pipeline_are_not_far_off(
    layer: Stage, num_stages: int, num_chunks: int, more: int, more_micro_batches: int, data: some.DataObject
) -> None:
    """Stages take turns at being slow, of which the closed form knows an average.

    Of 28,000 random cases the lowest ratio was 0.83, with two fuller stages of three and a layer more than chunks, and
    the highest 1.19.
    """
    fuller = data.draw(some.integers(0, num_stages - 1))
    layers = [num_chunks + more + (stage < fuller) for stage in range(num_stages)]
    closed, simulated = interleaved_layers(layer, layers, num_stages + more_micro_batches, num_chunks, 0.1, 0.6)
    assert simulated * 0.82 <= closed <= simulated * 1.2
