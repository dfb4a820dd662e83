"""One job over several types of devices: as good as trying every assignment, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product
from math import inf, log, sqrt

import numpy as np
import pytest

from conf.errors import ConfigError, InfeasiblePlan
from conf.plan.knobs import KnobValue
from conf.types.recompute import RECOMPUTES
from conf.units import GIBIBYTE
from costs import IMPLEMENTATIONS
from costs.price import price
from costs.setting import Plans, Setting
from costs.stages import StageGroup
from costs.step.priced_stage import PricedStage
from costs.step.replicas import PricedReplicas
from costs.step.schedule import MicroBatchSeconds, pipeline_seconds
from costs.step.stage_memory import group_memory
from costs.step.step_time import hop_seconds, reduction_seconds, stage_passes, update_seconds
from costs.work import Work, work_of
from sweeps.memory_odds import LIKELY, MemoryOdds
from sweeps.planner.mixed import choose_mixed
from sweeps.planner.plans.space import Space
from sweeps.planner.plans.strategy import spread_layers
from sweeps.planner.plans.whole_space import search_space
from tests.composed import load, load_cluster
from tests.messages import refused

SMALL = {
    "two types": (["model=llama-2-7b", "model.num_layers=5"], [("dgx1-v100", 2), ("selene", 4)], 4),
    "three types": (
        ["model=gpt-22b", "model.num_layers=6"],
        [("dgx1-v100", 2), ("selene", 2), ("mosaicml-a100-40gb", 4)],
        2,
    ),
    "on both sides of a node": (["model=gpt-1.4b", "model.num_layers=4"], [("jean-zay", 16), ("dgx-h100", 8)], 6),
}


def spaces_of(
    overrides: list[str], offers: list[tuple[str, int]], batch: int, trainer: str = "trisweep"
) -> list[Space]:
    model = load(overrides).model
    return [
        Space(Setting(model, load_cluster(name), "fp16", IMPLEMENTATIONS[trainer]), number, batch)
        for name, number in offers
    ]


def everything(spaces: list[Space]) -> Iterator[float]:
    """Step times of all assignments, stage by stage; infinite where one does not fit. Nothing here is of the search."""
    num_layers = spaces[0].setting.model.num_layers
    for t, d in product(range(1, 9), range(1, 9)):
        if any(space.world_size % (t * d) or space.setting.cluster.devices_per_node % t for space in spaces):
            continue
        counts = [space.world_size // (t * d) for space in spaces]
        for b, sp, recompute, zero in product(range(1, 9), [False, True], recomputations(spaces[0]), range(3)):
            if spaces[0].global_batch_size % (d * b) or (sp and t == 1):
                continue
            if zero != spaces[0].pinned.get("zero_stage", 0 if d == 1 else zero):
                continue
            plans = plan_of(t, sum(counts), d, b, spaces[0].global_batch_size // (d * b), sp, zero, recompute)
            works = [work_of(space.setting, plans) for space in spaces]
            shared = [
                shares
                for shares in product(range(1, num_layers), repeat=len(spaces))
                if sum(shares) == num_layers and all(map(int.__ge__, shares, counts))
            ]
            for order, shares in product(permutations(range(len(spaces))), shared):
                yield seconds_of(spaces, plans, works, order, counts, shares)


def recomputations(space: Space) -> list[int]:
    """Indices of those that the trainer runs."""
    return [0, 1, 2, 3] if space.setting.implementation.name == "trisweep" else [0, 1, 2]


def plan_of(t: int, p: int, d: int, b: int, m: int, sp: bool, zero: int, recompute: int) -> Plans:
    values = (t, p, 1, d, b, m, sp, zero, recompute, 1, 0, 1, 1, 1, 1)
    return Plans(*(np.array([value]) for value in values))


def seconds_of(
    spaces: list[Space],
    plans: Plans,
    works: list[Work],
    order: tuple[int, ...],
    counts: list[int],
    shares: tuple[int, ...],
) -> float:
    p, m = sum(counts), int(plans.num_micro_batches[0])
    kinds = [index for index in order for _ in range(counts[index])]
    layers = [n for index in order for n in evenly(shares[index], counts[index])]
    groups, seconds, waits, computed = [], [], [], []
    for stage, (kind, held) in enumerate(zip(kinds, layers, strict=True)):
        setting, work = spaces[kind].setting, works[kind]
        group = StageGroup(*(np.array([one]) for one in (1, stage, held, stage == 0, stage == p - 1)))
        priced = PricedStage(PricedReplicas(setting, plans), work, group)
        if group_memory(priced).total_bytes[0] > setting.cluster.device.memory_bytes:
            return inf
        passes = stage_passes(priced)
        hop = hop_to_previous(spaces, works, plans, kind, kinds[stage - 1] if stage else kind)
        forward = passes.forward + passes.tensor_forward + passes.sharding_forward + hop
        backward = passes.input_gradient + passes.tensor_backward + passes.sharding_backward + hop
        groups.append(group)
        seconds.append(MicroBatchSeconds(forward, backward, passes.weight_gradient))
        hidden = passes.forward + passes.input_gradient + passes.weight_gradient
        computed.append((hidden - passes.host)[0])
        reduced, update = reduction_seconds(priced, passes), update_seconds(priced)
        waits.append((reduced[0], update[0], (hidden - passes.forward + passes.tensor_backward)[0]))
    one = np.array([1])
    (whole,), _ = pipeline_seconds(groups, seconds, one * p, one * m, one, one * 0)
    slowest = spaces[0].setting.scale.slowest * sqrt(2 * log(plans.world_size[0]))
    return float(whole + after(waits) + m * max(computed) * slowest)


def evenly(layers: int, count: int) -> list[int]:
    base, more = divmod(layers, count)
    return [base + 1] * more + [base] * (count - more)


def hop_to_previous(spaces: list[Space], works: list[Work], plans: Plans, kind: int, previous: int) -> np.ndarray:
    if kind == previous:
        return hop_seconds(spaces[kind].setting, plans, works[kind])
    outside = []
    for index in (kind, previous):
        setting = spaces[index].setting
        cluster = setting.cluster.model_copy(update={"links": setting.cluster.links[-1:], "devices_per_node": 1})
        changed = Setting(setting.model, cluster, setting.dtype, setting.implementation)
        outside.append(hop_seconds(setting, plans, works[index], over=changed))
    return np.maximum(*outside)


def after(waits: list[tuple[float, float, float]]) -> float:
    """Seconds from the first stage's last backward pass to the end of the last reduction, and those of an update."""
    before, ends = 0.0, []
    for reduced, _, backward in waits:
        ends.append(reduced - before)
        before += backward
    return max(ends) + max(update for _, update, _ in waits)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["two types", pytest.param("three types", marks=pytest.mark.thorough), "on both sides of a node"]
)
def test_the_best_assignments_are_those_of_trying_every_one(name: str) -> None:
    spaces = spaces_of(*SMALL[name])
    tried = list(everything(spaces))
    choice = choose_mixed(spaces, top=5)
    assert choice.num_strategies == len(tried)
    assert [one.step_seconds for one in choice.best] == pytest.approx(sorted(tried)[:5], rel=1e-12)
    assert choice.num_priced < len(tried)
    assert (inf in tried) == (name != "on both sides of a node")  # memory binds in the others


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [0, 1])
def test_a_pinned_zero_stage_leaves_what_can_have_it_single_replicas_too(zero_stage: int) -> None:
    spaces = [replace(space, pinned={"zero_stage": zero_stage}) for space in spaces_of(*SMALL["two types"])]
    tried = list(everything(spaces))
    choice = choose_mixed(spaces, top=1)
    assert choice.num_strategies == len(tried)
    assert choice.best[0].step_seconds == pytest.approx(min(tried), rel=1e-12)


@pytest.mark.parametrize(
    "pinned", [{"zero_stage": 3}, {"tensor_parallel_size": 3}, {"micro_batch_size": 3}, {"micro_batch_size": 2**62}]
)
def test_pinned_knobs_that_no_assignment_has_are_named(pinned: dict[str, KnobValue]) -> None:
    spaces = [replace(space, pinned=pinned) for space in spaces_of(*SMALL["two types"])]
    ((name, value),) = pinned.items()
    with refused(InfeasiblePlan, "--mixed") as caught:
        choose_mixed(spaces, top=1)
    assert f"{name}={value}" in str(caught.value)


def test_four_types_are_refused_before_they_are_searched() -> None:
    offers = [("selene", 64), ("dgx-h100", 64), ("dgx1-v100", 64), ("jean-zay", 64)]
    with refused(ConfigError, "--mixed"):
        choose_mixed(spaces_of(["model=gpt-175b"], offers, 256), top=1)


@pytest.mark.parametrize("trainer", ["trisweep", "megatron-lm"])
def test_two_halves_of_one_type_cost_what_the_whole_costs(trainer: str) -> None:
    spaces = spaces_of(["model=gpt-22b"], [("selene", 16), ("selene", 16)], 32, trainer)
    best = choose_mixed(spaces, top=1).best[0]
    num_layers = spaces[0].setting.model.num_layers
    parallel, b, d = (
        best.strategy.parallel,
        best.strategy.batch.micro_batch_size,
        best.strategy.parallel.data_parallel_size,
    )
    t, p = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    layers = [held for block in best.blocks for held in block.layers_per_stage]
    assert layers == list(spread_layers(num_layers, p, layers[0], layers[-1]))
    plans = plan_of(
        t,
        p,
        d,
        b,
        32 // d // b,
        parallel.sequence_parallel,
        parallel.zero_stage,
        RECOMPUTES.index(parallel.recompute),
    )
    ends = {"first_stage_layers": np.array([layers[0]]), "last_stage_layers": np.array([layers[-1]])}
    same = Plans(**{name: getattr(plans, name) for name in Plans.__slots__ if name not in ends}, **ends)
    whole = price(spaces[0].setting, same)
    assert best.step_seconds == pytest.approx(whole.step_seconds[0], rel=1e-12)
    assert best.worst_stage_bytes == whole.peak_memory_bytes[0]


@pytest.mark.slow
def test_the_faster_type_takes_more_layers_and_both_together_beat_either() -> None:
    spaces = spaces_of(["model=gpt-175b"], [("selene", 64), ("dgx-h100", 64)], 128)
    best = choose_mixed(spaces, top=1).best[0]
    layers = {block.cluster: sum(block.layers_per_stage) for block in best.blocks}
    assert layers["dgx-h100"] > 1.5 * layers["selene"]
    assert best.step_seconds < min(search_space(space, top=1).step_seconds[0] for space in spaces)


def with_memory(gib: int, *, free: int | None = None) -> list[Space]:
    """Four A100 and four H100 with so much memory, of which assignments leave so much free, or are likely to fit."""
    spaces = []
    for space in spaces_of(["model=llama-2-13b"], [("selene", 4), ("dgx-h100", 4)], 32):
        device = space.setting.cluster.device.model_copy(update={"memory_bytes": gib * GIBIBYTE})
        setting = replace(space.setting, cluster=space.setting.cluster.model_copy(update={"device": device}))
        headroom = gib * GIBIBYTE - MemoryOdds.of("trisweep", 8).room_bytes(gib * GIBIBYTE)
        likely = replace(space, setting=setting, headroom_bytes=headroom, asks_likely=True)
        spaces.append(likely if free is None else replace(likely.on_paper(), headroom_bytes=free * GIBIBYTE))
    return spaces


def test_assignments_are_likely_to_fit_and_a_faster_one_that_may_not_is_named() -> None:
    choice, plain = choose_mixed(with_memory(36), top=5), choose_mixed(with_memory(36, free=0), top=1)
    assert min(one.fit_likelihood for one in choice.best) >= LIKELY
    assert choice.crowded == plain.best[0]
    assert plain.best[0].fit_likelihood < LIKELY
    assert plain.crowded is None
    assert not choice.none_likely


def test_where_no_assignment_is_likely_to_fit_those_that_fit_on_paper_are_chosen() -> None:
    choice, plain = choose_mixed(with_memory(31), top=3), choose_mixed(with_memory(31, free=0), top=3)
    assert choice.none_likely
    assert choice.crowded is None
    assert choice.best == plain.best


def test_what_assignments_leave_free_is_by_hand_where_somebody_says_so() -> None:
    roomy = choose_mixed(with_memory(40, free=8), top=1).best[0]
    assert roomy.worst_stage_bytes <= 32 * GIBIBYTE
    with refused(InfeasiblePlan, "--mixed") as caught:
        choose_mixed(with_memory(31, free=8), top=1)
    assert "or take a smaller --headroom" in str(caught.value)


def test_numbers_without_a_common_divisor_say_so() -> None:
    spaces = spaces_of(["model=gpt-22b"], [("selene", 7), ("dgx-h100", 64)], 64)
    with refused(InfeasiblePlan, "--mixed"):
        choose_mixed(spaces, top=1)


def test_too_little_memory_says_how_much_is_short() -> None:
    spaces = spaces_of(["model=gpt-175b"], [("selene", 8), ("dgx1-v100", 8)], 8)
    with refused(InfeasiblePlan, "--mixed"):
        choose_mixed(spaces, top=1)
