"""What a search over many numbers of devices leaves out can be none of the best."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costs.price import peak_bytes, price_step
from costs.setting import Floats
from sweeps.planner.choosing.choice import Choice, best_of, choose_plans, pareto_front
from sweeps.planner.choosing.objectives import PlanObjective, Training
from sweeps.planner.plans.blocks import blocks, blocks_of, families
from sweeps.planner.plans.bounds import Bounds
from sweeps.planner.plans.plainness import handicap
from sweeps.planner.plans.shard_work import price_all_shards
from sweeps.planner.plans.space import Family, Space
from sweeps.planner.plans.whole_space import REACH, search_space
from sweeps.planner.request import search_request
from tests.composed import composed
from tests.sweeps.planner.conftest import Case

GPT_22B = ["model=gpt-22b", "model.num_layers=12", "cluster=dgx-h100", "precision=bf16", "batch.global_batch_size=96"]
ASKED: dict[str, tuple[list[str], str]] = {
    "the whole space": ([], "trisweep"),
    "one recomputation": (["parallel.recompute=full", "parallel.zero_stage=1"], "trisweep"),
    "interleaved alone": (["parallel.virtual_pipeline_size=3"], "megatron-core"),
}

MIXTURE = ["model=deepseek-v2", "cluster=dgx-h100", "precision=bf16", "batch.global_batch_size=64"]
PINNED = ["parallel.tensor_parallel_size=1", "parallel.context_parallel_size=1"]


def test_no_plan_undercuts_its_bounds_of_time_and_memory(case: Case) -> None:
    require_bounds(case.space)


def test_a_first_layer_without_experts_is_faster_than_the_others_and_bounds_take_that_off() -> None:
    (space,) = search_request(composed([*MIXTURE, *PINNED]), devices="32", implementation="megatron-core").spaces
    require_bounds(space)


def test_a_search_leaves_out_times_of_a_mixture_that_change_nothing() -> None:
    asked = composed([*MIXTURE, *PINNED])
    (space,) = search_request(asked, devices="64", implementation="megatron-core", headroom="0").spaces
    space = replace(space, as_declared=True)
    table, num_fitting = price_all_shards([space]), 0
    every: list[Floats] = []
    families_seconds: dict[Family, float] = {}
    for block in blocks(space):
        work = table.of(block.plans)
        peak = peak_bytes(block.setting, block.plans, work)
        fits = block.legal & (peak <= space.room_bytes)
        seconds = price_step(block.setting, block.plans, work).total_seconds * handicap(
            block.setting, block.plans, peak
        )
        own = np.broadcast_to(seconds, fits.shape)[fits]
        num_fitting += len(own)
        every.append(own)
        for family, shards in block.families:
            of_family = np.broadcast_to(seconds, fits.shape)[:, shards][fits[:, shards]]
            if len(of_family):
                families_seconds[family] = min(families_seconds.get(family, np.inf), float(of_family.min()))
    top = 3
    found = search_space(space, top)
    assert (found.num_fitting, found.num_feasible, found.num_families) == (*[num_fitting] * 2, len(families_seconds))
    assert found.best is not None
    assert found.families is not None
    assert found.best.counted_seconds.tolist() == np.sort(np.concatenate(every))[:top].tolist()
    near = [seconds for seconds in sorted(families_seconds.values()) if seconds <= REACH * found.best.least]
    assert (
        found.families.counted_seconds.tolist()[: max(top, len(near))]
        == sorted(families_seconds.values())[: max(top, len(near))]
    )
    assert top < len(near) < found.num_families


def require_bounds(space: Space) -> None:
    bounds = Bounds([space])
    for family in families(space):
        micro_batches, seconds = bounds.of(space, family)
        for block in blocks_of(space, family):
            work = bounds.table.of(block.plans)
            prices = price_step(block.setting, block.plans, work)
            total = np.where(block.legal, np.broadcast_to(prices.total_seconds, block.shape), np.inf)
            least = total.min(axis=(0, 2))
            limits = seconds[np.searchsorted(micro_batches, block.plans.micro_batch_size.ravel())]
            assert np.all(least >= limits)
            assert np.all(total >= bounds.of_plans(block))
            peak = np.broadcast_to(peak_bytes(block.setting, block.plans, work), block.shape)
            assert np.all(peak.min(axis=(1, 2)) >= bounds.bytes_by_zero_stage(block))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("the whole space", "time"),
        pytest.param("the whole space", "device-hours", marks=pytest.mark.thorough),
        pytest.param("one recomputation", "time", marks=pytest.mark.thorough),
        ("one recomputation", "device-hours"),
        ("interleaved alone", "time"),
    ],
)
def test_the_best_of_many_numbers_of_devices_are_those_of_pricing_all(
    name: str, objective: PlanObjective, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides, trainer = ASKED[name]
    spaces = search_request(composed([*GPT_22B, *overrides]), devices="8-16", implementation=trainer).spaces
    monkeypatch.setattr("sweeps.planner.choosing.choice.MOST_SEARCHED_WHOLE", 0)
    promising = choose_plans(spaces, objective, Training(), 5)
    monkeypatch.setattr("sweeps.planner.choosing.choice.MOST_SEARCHED_WHOLE", len(spaces))
    whole = choose_plans(spaces, objective, Training(), 5)
    assert shown(promising) == shown(whole)
    assert promising.num_left_out > 0 == whole.num_left_out
    assert promising.num_strategies < whole.num_strategies


@pytest.mark.slow
def test_the_front_over_many_numbers_of_devices_is_that_of_pricing_all(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = search_request(composed(GPT_22B), devices="8-16")
    spaces = [replace(space, as_declared=True) for space in asked.spaces]
    fronts = []
    for most_searched_whole in (0, len(spaces)):
        monkeypatch.setattr("sweeps.planner.choosing.choice.MOST_SEARCHED_WHOLE", most_searched_whole)
        each = choose_plans(spaces, "time", Training(), 5, each=True).best_of_each
        fronts.append([(one.space.world_size, one.step_seconds, one.strategy) for one in pareto_front(each)])
    assert fronts[0] == fronts[1]
    assert len(fronts[0]) > 1


def shown(choice: Choice) -> list[tuple[float, int, float]]:
    found = (*choice.best, *choice.families, choice.fastest, *([choice.crowded] if choice.crowded else []))
    return [(each.step_seconds, each.space.world_size, each.peak_memory_bytes) for each in found]


@pytest.mark.slow
def test_the_best_of_every_number_of_devices_is_that_of_searching_it_whole() -> None:
    spaces: tuple[Space, ...] = search_request(composed(GPT_22B), devices="8-12").spaces
    for space, candidate in zip(spaces, best_of(spaces), strict=True):
        found = search_space(space, 1).step_seconds.tolist()
        assert found == ([] if candidate is None else [candidate.step_seconds])
