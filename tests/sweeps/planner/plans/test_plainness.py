"""Of plans that are nearly as fast the one is proposed that people run."""

from __future__ import annotations

import pytest

from conf.overrides import Overrides
from costs import estimate
from sweeps.memory_odds import MemoryOdds
from sweeps.planner.choosing.choice import Choice, choose_plans, gain_in_words
from sweeps.planner.choosing.objectives import Training
from sweeps.planner.plans.plainness import MOST_COUNTED
from sweeps.planner.request import Request, search_request
from tests.composed import composed
from tests.sweeps.planner.counted import num_departures

ON_H100 = "cluster=dgx-h100 precision=bf16 parallel.world_size"
JOBS = {
    "8B on a node": f"model=llama-3.1-8b {ON_H100}=8 batch.global_batch_size=128 model.seq_length=8192",
    "8B": f"model=llama-3.1-8b {ON_H100}=64 batch.global_batch_size=512 model.seq_length=8192",
    "mixture": "model=qwen3-30b-a3b cluster=dgx-h200 precision=bf16 parallel.world_size=8 batch.global_batch_size=512",
}


def request_of(job: str, headroom: str | None = None) -> Request:
    asked = composed(Overrides.parse(JOBS[job].split()).words)
    return search_request(asked, implementation="megatron-core", headroom=headroom)


def choice_of(job: str, headroom: str | None = None) -> Choice:
    return choose_plans(request_of(job, headroom).spaces, "time", Training(), 10)


@pytest.mark.parametrize("job", ["8B on a node", "8B", "mixture"])
def test_no_pipeline_is_proposed_where_it_gains_little_and_what_is_faster_is_named(job: str) -> None:
    choice = choice_of(job)
    first, fastest = choice.best[0], choice.fastest
    assert first.strategy.parallel.pipeline_parallel_size == 1 < fastest.strategy.parallel.pipeline_parallel_size
    assert first.strategy == choice.families[0].strategy
    assert fastest.step_seconds < first.step_seconds < 1.03 * fastest.step_seconds
    assert "faster on paper, with " in (words := gain_in_words(fastest, first))
    assert "a pipeline, uneven layers" in words


def test_plans_are_likely_to_fit_unless_somebody_says_otherwise_and_what_that_costs_is_known() -> None:
    choice, without = choice_of("mixture"), choice_of("mixture", "0")
    memory_bytes = choice.best[0].space.setting.cluster.device.memory_bytes
    odds = MemoryOdds.of("megatron-core", 8)
    assert all(odds.likelihood(one.peak_memory_bytes, memory_bytes) >= 0.9 for one in (*choice.best, *choice.families))
    assert choice.crowded is not None
    assert (unlikely := odds.likelihood(choice.crowded.peak_memory_bytes, memory_bytes)) < 0.9
    assert f" faster on paper, {unlikely:.0%} likely to fit" in gain_in_words(choice.crowded, choice.best[0])
    assert choice.crowded.counted_seconds < choice.best[0].counted_seconds
    assert without.crowded is None


def test_departures_are_those_that_are_counted_plan_by_plan() -> None:
    request = request_of("mixture", "0")
    choice = choose_plans(request.spaces, "time", Training(), 10)
    kinds: set[str] = set()
    for one in (*choice.best, *choice.families, choice.fastest):
        predicted = estimate(one.strategy.setup(request.settings), one.space.setting.implementation)
        assert len(one.departures) == num_departures(one.strategy, predicted, request.settings.model.num_layers)
        assert one.step_seconds <= one.counted_seconds <= MOST_COUNTED * one.step_seconds
        kinds.update(one.departures)
    assert len(kinds) > 5
