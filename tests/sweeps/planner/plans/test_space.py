"""The space holds exactly what can be priced: what an Experiment accepts, or a Setup that another trainer runs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from conf.errors import InfeasiblePlan
from conf.plan.knobs import SCHEDULES
from conf.types.recompute import RECOMPUTES
from sweeps.planner.choosing.explain import priceable
from sweeps.planner.plans.blocks import PlanGrid, all_sizes, blocks
from sweeps.planner.plans.runnable import MOST_LAYERS_LIGHTER, chunk_numbers, layer_ends
from sweeps.planner.plans.space import (
    SEARCHED_SCHEDULES,
    Sizes,
    Space,
    divisors,
    micro_batch_sizes,
    pipeline_parallel_sizes,
    placings,
    tensor_parallel_sizes,
)
from sweeps.planner.plans.space import recomputations as recomputations_of
from sweeps.planner.plans.strategy import Strategy, even_ends, spread_layers
from sweeps.planner.plans.whole_space import search_space
from sweeps.planner.request import search_request
from tests.composed import composed
from tests.sweeps.planner.conftest import Case, drawn

NUM_PLANS = 200


def exists(strategy: Strategy, case: Case) -> bool:
    parallel, trainer = strategy.parallel, case.space.setting.implementation
    if parallel.schedule == "interleaved" and trainer.name not in ("trisweep", "megatron-core"):
        p, chunks = parallel.pipeline_parallel_size, parallel.virtual_pipeline_size
        if strategy.num_micro_batches % p or case.settings.model.num_layers % (p * chunks):
            return False
    try:
        priceable(strategy, case.settings, trainer)
    except InfeasiblePlan:
        return False
    return True


def holds(found: dict[tuple[int, int], PlanGrid], strategy: Strategy, num_layers: int) -> bool:
    """Whether the strategy is one of the plans of the blocks, by tensor- and pipeline-parallel size."""
    block = found.get((strategy.parallel.tensor_parallel_size, strategy.parallel.pipeline_parallel_size))
    if block is None:
        return False
    plans, p = block.plans, strategy.parallel.pipeline_parallel_size
    layers = strategy.parallel.layers_per_stage
    first, last = even_ends(num_layers, p) if layers is None else (layers[0], layers[-1])
    shard = (
        (plans.recompute_every == strategy.parallel.recompute_every)
        & (plans.micro_batch_size == strategy.batch.micro_batch_size)
        & (plans.sequence_parallel == strategy.parallel.sequence_parallel)
        & (plans.recompute == RECOMPUTES.index(strategy.parallel.recompute))
    )
    layout = (
        (plans.schedule == SCHEDULES.index(strategy.parallel.schedule))
        & (plans.virtual_pipeline_size == strategy.parallel.virtual_pipeline_size)
        & (plans.first_stage_layers == first)
        & (plans.last_stage_layers == last)
    )
    return bool((block.legal & shard & layout & (plans.zero_stage == strategy.parallel.zero_stage)).sum() == 1)


@pytest.mark.slow
def test_every_plan_of_the_space_is_an_experiment(case: Case) -> None:
    rng = np.random.default_rng(1)
    strategies = [one for block, index in drawn(case.space, rng, NUM_PLANS) for one in case.strategies(block, index)]
    assert len(strategies) == NUM_PLANS
    for strategy in strategies:
        experiment = priceable(strategy, case.settings, case.space.setting.implementation)
        assert experiment.data_parallel_size == strategy.parallel.data_parallel_size
        assert experiment.batch.global_batch_size == case.space.global_batch_size
        if strategy.parallel.layers_per_stage is None:
            assert len(set(experiment.layers_per_stage)) <= 2


@pytest.mark.slow
def test_a_random_plan_is_in_the_space_exactly_where_it_is_an_experiment(case: Case) -> None:
    rng = np.random.default_rng(2)
    found = {
        (block.sizes.tensor, block.sizes.pipeline): block
        for block in blocks(case.space)
        if block.setting.zero_group_size is None and not block.setting.offload_optimizer and block.sizes.context == 1
    }
    verdicts = []
    for _ in range(3 * NUM_PLANS):
        strategy = random_strategy(case.space, rng)
        verdict = exists(strategy, case)
        assert holds(found, strategy, case.settings.model.num_layers) == verdict, strategy
        verdicts.append(verdict)
    assert 0 < sum(verdicts) < 2.9 * NUM_PLANS


def random_strategy(space: Space, rng: np.random.Generator) -> Strategy:
    """Any values, legal or not, of which a good part goes together."""
    model = space.setting.model
    t = int(rng.choice([1, 1, 1, 2, 3, 4, 6, 8, 12, 16]))
    p = int(rng.choice(divisors(space.world_size) + [1, 1, 3, 5, model.num_layers, model.num_layers + 1]))
    d = space.world_size // (t * p)
    schedule = str(rng.choice(SEARCHED_SCHEDULES))
    lighter = 2 if schedule == "interleaved" else MOST_LAYERS_LIGHTER
    ends = layer_ends(model.num_layers, p, lighter) if p <= model.num_layers else [(1, 1)]
    first, last = ends[int(rng.integers(len(ends)))]
    spread = spread_layers(model.num_layers, p, first, last) if p <= model.num_layers else None
    even = (first, last) == even_ends(model.num_layers, p)
    recomputations = [RECOMPUTES[index] for index, every in recomputations_of(space) if every == 1]
    v = int(rng.choice(chunk_numbers(model.num_layers, p) or [2])) if schedule == "interleaved" else 1
    return Strategy.of(
        {
            "world_size": space.world_size,
            "tensor_parallel_size": t,
            "pipeline_parallel_size": p,
            "virtual_pipeline_size": v,
            "schedule": schedule,
            "layers_per_stage": None if even or rng.random() < 0.5 else spread,
            "sequence_parallel": bool(rng.random() < 0.5),
            "zero_stage": int(rng.integers(4)) if d > 1 else 0,
            "recompute": str(rng.choice(recomputations)),
            "recompute_every": 1,
            "micro_batch_size": int(rng.choice([1, 2, 3, 4, 5, 8])),
            "global_batch_size": space.global_batch_size,
            "tensor_parallel_across_nodes": space.tensor_parallel_across_nodes,
        }
    )


@pytest.mark.slow
def test_sizes_need_not_be_powers_of_two(case: Case) -> None:
    """Divisors of the devices, of what is split and of the batch, all of them."""
    space = case.space
    for t in tensor_parallel_sizes(space):
        for p in pipeline_parallel_sizes(space, t):
            assert space.world_size % (t * p) == 0
    assert micro_batch_sizes(space, 1) == [b for b in range(1, 2049) if space.global_batch_size % b == 0]


@pytest.mark.slow
def test_tensor_parallel_groups_leave_their_node_only_where_the_plan_says_so() -> None:
    inside = Case(["model=gpt-22b", "cluster=jean-zay", "precision=bf16"], 48, 96, "trisweep").space
    across = Case(
        ["model=gpt-22b", "cluster=jean-zay", "precision=bf16", "parallel.tensor_parallel_across_nodes=true"],
        48,
        96,
        "trisweep",
    ).space
    assert max(tensor_parallel_sizes(inside)) == inside.setting.cluster.devices_per_node
    assert max(tensor_parallel_sizes(across)) > inside.setting.cluster.devices_per_node


@pytest.mark.slow
@pytest.mark.parametrize("num_stages", [1, 2, 3, 5, 8, 16])
def test_layers_are_spread_evenly_or_the_ends_hold_less(num_stages: int) -> None:
    num_layers = 48
    ends = layer_ends(num_layers, num_stages)
    assert ends[0] == even_ends(num_layers, num_stages)
    assert len(set(ends)) == len(ends)
    for first, last in ends:
        layers = spread_layers(num_layers, num_stages, first, last)
        assert sum(layers) == num_layers
        assert len(layers) == num_stages
        assert min(layers) >= 1
    if num_stages > 2:
        assert len(ends) == (min(MOST_LAYERS_LIGHTER, ends[0][0] - 1) + 1) * (
            min(MOST_LAYERS_LIGHTER, ends[0][1] - 1) + 1
        )


@pytest.mark.slow
def test_pinned_knobs_leave_only_their_value(case: Case) -> None:
    zero_stage = 2 if case.space.setting.implementation.name == "fsdp" else 1
    space = case.pinned(recompute="full", sequence_parallel=False, layers_per_stage=None, zero_stage=zero_stage)
    found = list(blocks(space))
    assert found
    for block in found:
        assert set(block.plans.recompute.ravel().tolist()) == {RECOMPUTES.index("full")}
        assert not block.plans.sequence_parallel.any()
        assert set(block.plans.zero_stage.ravel().tolist()) == {zero_stage}
        rows = block.rows(np.flatnonzero(np.broadcast_to(block.legal, block.shape)))
        p = int(block.plans.pipeline_parallel_size.item())
        assert {
            (first, last)
            for first, last in zip(rows.first_stage_layers.tolist(), rows.last_stage_layers.tolist(), strict=True)
        } == {even_ends(case.settings.model.num_layers, p)}


@pytest.mark.slow
@pytest.mark.parametrize("pinned", [{}, {"pipeline_before_data": True}])
def test_both_orders_of_the_axes_are_tried_where_experts_fill_a_stage(pinned: dict[str, bool]) -> None:
    case = Case(["model=mixtral-8x7b", "cluster=dgx-h100", "precision=bf16"], 32, 128, "megatron-core")
    for block in blocks(case.pinned(**pinned)):
        sizes, is_before = block.sizes, block.setting.pipeline_before_data
        for family, shards in block.families:
            fills_a_stage = family.expert * sizes.tensor == sizes.tensor * sizes.context
            assert fills_a_stage or sizes.pipeline == 1 or not is_before or not block.legal[:, shards].any()
        assert is_before or not pinned
        if is_before and not pinned:
            assert sizes.pipeline > 1
            index = np.flatnonzero(np.broadcast_to(block.legal, block.shape))[:1]
            (strategy,) = case.strategies(block, index)
            assert priceable(strategy, case.settings, case.space.setting.implementation)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "split"),
    [
        ("trisweep", "null"),
        ("trisweep", "1"),
        ("megatron-core", "null"),
        ("megatron-core", "1"),
        ("megatron-core", "2"),
    ],
)
def test_experts_are_spread_over_every_number_of_ranks_that_an_experiment_accepts(trainer: str, split: str) -> None:
    """Over tensor ranks too, where each rank holds whole experts."""
    overrides = ["model=mixtral-8x7b", "cluster=dgx-h100", "precision=bf16", "batch.global_batch_size=16"]
    overrides.append(f"parallel.expert_tensor_parallel_size={split}")
    wanted = search_request(composed(overrides), devices="16", implementation=trainer)
    (space,) = wanted.spaces
    offered = defaultdict[Sizes, set[int]](set)
    for block in blocks(space):
        offered[block.sizes].update(family.expert for family, shards in block.families if block.legal[:, shards].any())
    for sizes in all_sizes(space):
        for expert in divisors(8):
            strategy = Strategy.of(
                {
                    "world_size": 16,
                    "tensor_parallel_size": sizes.tensor,
                    "context_parallel_size": sizes.context,
                    "pipeline_parallel_size": sizes.pipeline,
                    "expert_parallel_size": expert,
                    "expert_tensor_parallel_size": None if split == "null" else int(split),
                    "virtual_pipeline_size": 1,
                    "schedule": "1f1b",
                    "layers_per_stage": None,
                    "sequence_parallel": sizes.tensor > 1,
                    "zero_stage": 0,
                    "recompute": "none",
                    "recompute_every": 1,
                    "tensor_parallel_across_nodes": False,
                    "micro_batch_size": 1,
                    "global_batch_size": 16,
                }
            )
            try:
                priceable(strategy, wanted.settings, space.setting.implementation)
            except InfeasiblePlan:
                assert expert not in offered[sizes], strategy
            else:
                assert expert in offered[sizes], strategy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "pins", "offloads"),
    [
        (16, (), {False, True}),
        (1024, (), {False}),
        (1024, ("parallel.offload_optimizer=true",), {True}),
        (16, ("parallel.offload_optimizer=false",), {False}),
    ],
)
def test_a_search_offloads_only_a_state_that_is_a_tenth_of_the_memory_or_where_it_is_asked_to(
    devices: int, pins: tuple[str, ...], offloads: set[bool]
) -> None:
    """The 12 bytes of each of 70 billion parameters: 52 GB on each of 16 devices, 0.8 GB on each of 1,024."""
    job = ["model=llama-3.1-70b", "cluster=dgx-h100", "precision=bf16", "batch.global_batch_size=1024"]
    asked = composed([*job, f"parallel.world_size={devices}", *pins])
    (space,) = search_request(asked, implementation="megatron-core").spaces
    sizes = Sizes(tensor=8, context=1, pipeline=2, data=devices // 16)
    assert {placing.offload_optimizer for placing in placings(space, sizes)} == offloads


def test_groups_of_other_sizes_than_a_node_are_tried_where_the_batch_is_small() -> None:
    """Two replicas a group were 7 % faster than all plans that a search of this job went through."""
    job = ["model=llama-3.1-8b", "model.num_layers=3", "cluster=internevo-a100", "cluster.num_nodes=8"]
    asked = composed([*job, "model.seq_length=16384", "batch.global_batch_size=1", "parallel.world_size=64"])
    (space,) = search_request(asked, implementation="megatron-core", headroom="0").spaces
    narrow = replace(space, pinned={"zero_group_size": 2})
    assert search_space(space, 1).fastest_seconds <= search_space(narrow, 1).fastest_seconds
