"""The search finds what trying everything finds, and counts what it went through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from math import inf

import pytest

from conf.compose.settings import Settings
from conf.errors import InfeasiblePlan
from conf.plan.knobs import KNOBS, KnobValue
from conf.plan.setup import Setup
from conf.types.recompute import RECOMPUTES
from costs import IMPLEMENTATIONS, Estimate, estimates, num_parameters
from costs.counts.parameters import largest_micro_batch_size
from costs.setting import Setting
from sweeps.planner.choosing.explain import priceable
from sweeps.planner.plans.blocks import blocks
from sweeps.planner.plans.runnable import chunk_numbers
from sweeps.planner.plans.space import FEWEST_TOKENS_PER_RANK, RECOMPUTE_EVERY, SEARCHED_SCHEDULES, Space
from sweeps.planner.plans.strategy import Strategy, even_ends, spread_layers, strategies_of
from sweeps.planner.plans.whole_space import Found, search_space
from sweeps.planner.request import search_request
from tests.composed import composed, load
from tests.sweeps.planner.counted import counted_seconds

LLAMA = ["model=llama-3.1-8b", "cluster=dgx-h100", "precision=bf16"]
# As much of the memory as of the layers, so that some plans fit and others do not. Ten layers have uneven stages and
# uneven chunks, and leave every lighter end that is tried a layer.
FEW_LAYERS = ["model.num_layers=10", "cluster.device.memory_bytes=30000000000"]
SMALL = {
    "GPT proxy on 4 cores": (["model=gpt-175b-proxy", "cluster=local", "precision=fp32"], 4, 8, "trisweep"),
    "10 layers of Llama 3.1 8B on 4 small H100": ([*LLAMA, *FEW_LAYERS], 4, 6, "trisweep"),
    "12 layers of GPT 22B on 12 small GCDs of small nodes": (
        [
            *("model=gpt-22b", "cluster=frontier", "precision=bf16", "cluster.devices_per_node=4"),
            *("model.num_layers=12", "cluster.device.memory_bytes=20000000000"),
        ],
        12,
        12,
        "megatron-deepspeed",
    ),
}
*QUICK, LONG = SMALL


def small(name: str) -> tuple[Settings, Space]:
    overrides, world_size, batch, trainer = SMALL[name]
    settings = load(overrides)
    setting = Setting(settings.model, settings.cluster, settings.precision.dtype, IMPLEMENTATIONS[trainer])
    return settings, Space(setting, world_size, batch, pinned={"layers_per_stage": None})


def recomputations() -> list[tuple[str, int]]:
    return [(name, every) for name in RECOMPUTES for every in (RECOMPUTE_EVERY if name != "none" else (1,))]


def says_something(space: Space, recompute: str, every: int, chunk_layers: int) -> bool:
    """Whether it is a plan of its own, and none that another one always beats."""
    if recompute == "selective" and space.setting.implementation.flash_attention:
        return every == 1
    place = RECOMPUTE_EVERY.index(every)
    return place == 0 or -(-chunk_layers // every) < -(-chunk_layers // RECOMPUTE_EVERY[place - 1])


def cuts(settings: Settings, space: Space, p: int, v: int, sequences: int) -> bool:
    """Whether the number of chunks is one that the search tries and the trainer takes."""
    layers, m = settings.model.num_layers, space.global_batch_size // sequences
    if v == 1 or space.setting.implementation.name == "trisweep":
        return v in (1, *chunk_numbers(layers, p))
    return layers % (p * v) == 0 and m % p == 0


@cache
def everything_in(name: str) -> list[tuple[Strategy, Estimate]]:
    """All combinations in a small space with even layers, at every ZeRO stage, which also a single replica may have."""
    return everything(*small(name), [None])


def everything(
    settings: Settings, space: Space, layers: list[tuple[int, ...] | None]
) -> list[tuple[Strategy, Estimate]]:
    """All combinations of all values, as far as an Experiment takes them; nothing here is from the search."""
    found = list(possible(settings, space, layers))
    implementation = space.setting.implementation
    priced = estimates([(setup, implementation) for _, setup in found])
    return [(strategy, predicted) for (strategy, _), predicted in zip(found, priced, strict=True)]


def possible(
    settings: Settings, space: Space, layers: list[tuple[int, ...] | None]
) -> Iterator[tuple[Strategy, Setup]]:
    sizes = range(1, space.world_size + 1)
    contexts = [size for size in sizes if size == 1 or settings.model.seq_length >= FEWEST_TOKENS_PER_RANK * size]
    chunks = product(range(1, settings.model.num_layers + 1), SEARCHED_SCHEDULES)
    cut = [(v, schedule) for v, schedule in chunks if (v > 1) == (schedule == "interleaved")]
    # Sizes, and a recomputation, that cannot exist in the plainest plan exist in none.
    axes = [
        (t, p, c)
        for t, p, c in product(sizes, sizes, contexts)
        if space.world_size % (t * p * c) == 0 and plan_of(settings, space, t=t, p=p, c=c)
    ]
    t, p, c = axes[0]
    runs = {name for name in RECOMPUTES if plan_of(settings, space, t=t, p=p, c=c, recompute=name)}
    repeats = [(name, every) for name, every in recomputations() if name in runs]
    batches = range(1, space.global_batch_size + 1)
    values = product(axes, cut, layers, [False, True], repeats, batches)
    for (t, p, c), (v, schedule), spread, sequence_parallel, (recompute, every), b in values:
        d = space.world_size // (t * p * c)
        if space.pinned.get("pipeline_parallel_size", p) != p or space.pinned.get("schedule", schedule) != schedule:
            continue
        if space.global_batch_size % (d * b) or (spread is not None and len(spread) != p):
            continue
        chunk = -(
            -max(spread or spread_layers(settings.model.num_layers, p, *even_ends(settings.model.num_layers, p))) // v
        )
        if not says_something(space, recompute, every, chunk) or not cuts(settings, space, p, v, b * d):
            continue
        others = {"virtual_pipeline_size": v, "schedule": schedule, "layers_per_stage": spread, "recompute": recompute}
        others |= {"sequence_parallel": sequence_parallel, "recompute_every": every, "micro_batch_size": b}
        for zero_stage in [space.pinned["zero_stage"]] if "zero_stage" in space.pinned else range(4):
            if plan := plan_of(settings, space, t=t, p=p, c=c, **others, zero_stage=zero_stage):
                yield plan


def plan_of(
    settings: Settings, space: Space, *, t: int = 1, p: int = 1, c: int = 1, **others: KnobValue
) -> tuple[Strategy, Setup] | None:
    """The plan of these sizes and knobs, all others plain; None if it cannot exist."""
    sizes = {"tensor_parallel_size": t, "pipeline_parallel_size": p, "context_parallel_size": c}
    job = {"world_size": space.world_size, "global_batch_size": space.global_batch_size, "micro_batch_size": 1}
    plain = {knob.name: knob.plain for knob in KNOBS if knob.has_plain} | {"tensor_parallel_across_nodes": False}
    strategy = Strategy.of({**plain, **sizes, **job, **others})
    try:
        return strategy, priceable(strategy, settings, space.setting.implementation)
    except InfeasiblePlan:
        return None


def num_replicas(strategy: Strategy) -> int:
    return strategy.parallel.data_parallel_size * strategy.parallel.context_parallel_size


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, pytest.param(LONG, marks=pytest.mark.thorough)])
def test_the_best_plan_and_every_count_are_those_of_trying_everything(name: str) -> None:
    settings, space = small(name)
    # All stages of a single replica are one plan.
    tried = [one for one in everything_in(name) if one[0].parallel.zero_stage == 0 or num_replicas(one[0]) > 1]
    fitting = [one for one in tried if one[1].fits]
    counted = sorted(counted_seconds(*one, settings.model.num_layers) for one in fitting)
    found = search_space(space, top=20)
    assert found.num_strategies == len(tried)
    assert found.num_fitting == len(fitting)
    assert found.smallest_bytes == min(predicted.peak_memory_bytes for _, predicted in tried)
    assert found.best is not None
    assert found.fastest is not None
    assert found.best.counted_seconds == pytest.approx(counted[:20], rel=1e-12)
    assert found.fastest.step_seconds[0] == min(predicted.step_seconds for _, predicted in fitting)
    assert found.fastest.step_seconds[0] <= found.step_seconds[0] <= found.best.least


@pytest.mark.slow
def test_what_leaves_too_little_memory_free_is_no_answer_and_the_best_of_it_is_kept() -> None:
    name = "10 layers of Llama 3.1 8B on 4 small H100"
    settings, space = small(name)
    space = replace(space, headroom_bytes=settings.cluster.device.memory_bytes // 3)
    fitting = [one for one in everything_in(name) if one[1].fits]
    free = [one for one in fitting if one[1].peak_memory_bytes <= space.room_bytes]
    least, of_all = (min(counted_seconds(*one, 10) for one in each) for each in (free, fitting))
    found = search_space(space, top=1)
    assert found.best is not None
    assert found.crowded is not None
    assert found.best.least == pytest.approx(least, rel=1e-12)
    assert found.crowded.least == pytest.approx(of_all, rel=1e-12)
    assert of_all < least
    without = search_space(replace(space, headroom_bytes=0), top=1)
    assert without.crowded is None
    assert without.best is not None
    assert without.best.least == found.crowded.least


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["GPT proxy on 4 cores", "10 layers of Llama 3.1 8B on 4 small H100"])
def test_a_pinned_zero_stage_leaves_all_that_can_have_it_single_replicas_too(name: str, zero_stage: int) -> None:
    settings, space = small(name)
    space = replace(space, pinned={**space.pinned, "zero_stage": zero_stage})
    tried = [one for one in everything_in(name) if one[0].parallel.zero_stage == zero_stage]
    found = search_space(space, top=5)
    assert any(strategy.parallel.data_parallel_size == 1 for strategy, _ in tried)
    assert found.num_strategies == len(tried)
    counted = sorted(counted_seconds(*one, settings.model.num_layers) for one in tried if one[1].fits)
    assert found.best is not None
    assert found.num_fitting == len(counted)
    assert found.best.counted_seconds == pytest.approx(counted[:5], rel=1e-12)


@pytest.mark.slow
def test_uneven_layers_are_among_what_is_tried() -> None:
    settings, space = small("10 layers of Llama 3.1 8B on 4 small H100")
    layers = settings.model.num_layers
    space = replace(space, pinned={"pipeline_parallel_size": 2, "schedule": "1f1b", "zero_stage": 1})
    spreads: list[tuple[int, ...] | None] = [(layers // 2 + more, layers // 2 - more) for more in range(-4, 5) if more]
    tried = everything(settings, space, [None, *spreads])
    found = search_space(space, top=1)
    assert found.num_strategies == len(tried)
    assert found.fastest is not None
    assert found.fastest.step_seconds[0] == min(predicted.step_seconds for _, predicted in tried if predicted.fits)


def test_the_head_of_a_large_vocabulary_makes_the_last_stage_lighter() -> None:
    """The head of the Llama 3.1 8B weighs more than two layers."""
    settings = load(LLAMA)
    setting = Setting(settings.model, settings.cluster, "bf16", IMPLEMENTATIONS["trisweep"])
    pinned = {"pipeline_parallel_size": 4, "tensor_parallel_size": 1, "schedule": "1f1b", "micro_batch_size": 1}
    fastest = search_space(Space(setting, 4, 32, pinned=pinned), top=1).fastest  # type: ignore[arg-type]
    assert fastest is not None
    (strategy,) = strategies_of(fastest.plans, settings.model.num_layers, tensor_parallel_across_nodes=False)
    assert strategy.parallel.layers_per_stage is not None
    assert strategy.parallel.layers_per_stage[-1] < min(strategy.parallel.layers_per_stage[:-1])


def test_a_limit_leaves_what_is_fast_enough() -> None:
    _, space = small("10 layers of Llama 3.1 8B on 4 small H100")
    free = search_space(space, top=50)
    limit = float(free.step_seconds[10])
    limited = search_space(space, top=50, longest_step_seconds=limit)
    assert 0 < limited.num_feasible < free.num_feasible
    assert limited.step_seconds.max() <= limit
    assert set(free.step_seconds[free.step_seconds <= limit]) <= set(limited.step_seconds)
    assert limited.num_fitting == free.num_fitting
    assert limited.fastest_seconds == free.fastest_seconds
    none = search_space(space, top=50, longest_step_seconds=limit / 1e6)
    assert none.best is None
    assert none.fastest_seconds == free.fastest_seconds


def test_what_fits_nowhere_says_how_much_the_smallest_needs() -> None:
    settings = load(["model=gpt-175b", "cluster=selene", "precision=bf16"])
    space = Space(Setting(settings.model, settings.cluster, "bf16", IMPLEMENTATIONS["trisweep"]), 8, 8)
    found = search_space(space, top=5)
    assert found.num_strategies > 0
    assert found.num_fitting == 0
    assert found.best is None
    assert found.fastest_seconds == inf
    assert found.smallest_bytes > settings.cluster.device.memory_bytes


def test_micro_batches_that_leave_64_bits_are_not_searched() -> None:
    """Their bytes wrapped around zero, and they fitted."""
    _, space = small("10 layers of Llama 3.1 8B on 4 small H100")
    huge = replace(space, global_batch_size=2**29, pinned={"recompute": "full", "zero_stage": 0})
    found = search_space(huge, top=3)
    most = largest_micro_batch_size(space.setting.model)
    assert max(max(block.plans.micro_batch_size.ravel().tolist()) for block in blocks(huge)) <= most < 2**29
    assert found.best is not None
    assert found.smallest_bytes > num_parameters(space.setting.model)
    assert found.best.plans.micro_batch_size.max() <= 64


@pytest.mark.slow
def test_large_spaces_are_cut_without_losing_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    _, space = small("10 layers of Llama 3.1 8B on 4 small H100")
    whole = search_space(space, top=10)
    monkeypatch.setattr("sweeps.planner.plans.whole_space.MOST_PLANS_AT_ONCE", 50)
    cut = search_space(space, top=10)
    assert (cut.num_strategies, cut.num_fitting, cut.smallest_bytes) == (
        whole.num_strategies,
        whole.num_fitting,
        whole.smallest_bytes,
    )
    assert cut.step_seconds.tolist() == whole.step_seconds.tolist()


@pytest.mark.slow
def test_a_plan_that_fits_with_bf16_gradients_alone_is_found_with_them_alone() -> None:
    """On a device whose memory lies between what the two need at least."""
    widths = {
        width: [*LLAMA, "batch.global_batch_size=8", f"precision.gradient_dtype={width}"] for width in ("bf16", "fp32")
    }

    def found(overrides: list[str]) -> Found:
        (space,) = search_request(composed(overrides), devices="4", headroom="0").spaces
        return search_space(space, 1)

    narrow, wide = (found(overrides) for overrides in widths.values())
    assert narrow.num_strategies == wide.num_strategies
    assert narrow.smallest_bytes < wide.smallest_bytes
    memory = f"cluster.device.memory_bytes={(narrow.smallest_bytes + wide.smallest_bytes) // 2}"
    fitting = {width: found([*overrides, memory]).num_fitting for width, overrides in widths.items()}
    assert fitting["fp32"] == 0
    assert fitting["bf16"] > 0
