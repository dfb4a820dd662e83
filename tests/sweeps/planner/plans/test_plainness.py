"""Of plans that are nearly as fast the one is proposed that people run."""

from __future__ import annotations

import pytest

from conf.overrides import Overrides
from sweeps.planner.choosing.choice import Choice, choose_plans, gain_in_words
from sweeps.planner.choosing.objectives import Training
from sweeps.planner.plans.plainness import MOST_COUNTED
from sweeps.planner.request import search_request
from tests.composed import composed
from tests.sweeps.planner.counted import num_departures

ON_H100 = "cluster=dgx-h100 precision=bf16 parallel.world_size"
JOBS = {
    "8B on a node": f"model=llama-3.1-8b {ON_H100}=8 batch.global_batch_size=128 model.seq_length=8192",
    "8B": f"model=llama-3.1-8b {ON_H100}=64 batch.global_batch_size=512 model.seq_length=8192",
    "mixture": "model=qwen3-30b-a3b cluster=dgx-h200 precision=bf16 parallel.world_size=8 batch.global_batch_size=512",
}


def choice_of(job: str, headroom: str = "5%") -> Choice:
    asked = composed(Overrides.parse(JOBS[job].split()).words)
    wanted = search_request(asked, implementation="megatron-core", headroom=headroom)
    return choose_plans(wanted.spaces, "time", Training(), 10)


@pytest.mark.parametrize("job", ["8B on a node", "8B", "mixture"])
def test_no_pipeline_is_proposed_where_it_gains_little_and_what_is_faster_is_named(job: str) -> None:
    choice = choice_of(job)
    first, fastest = choice.best[0], choice.fastest
    assert first.strategy.parallel.pipeline_parallel_size == 1 < fastest.strategy.parallel.pipeline_parallel_size
    assert first.strategy == choice.families[0].strategy
    assert fastest.step_seconds < first.step_seconds < 1.03 * fastest.step_seconds
    assert "faster on paper, with " in (words := gain_in_words(fastest, first))
    assert "a pipeline, uneven layers" in words


def test_headroom_is_left_unless_somebody_says_otherwise_and_what_it_costs_is_known() -> None:
    choice, without = choice_of("mixture"), choice_of("mixture", "0")
    memory_bytes = choice.best[0].space.setting.cluster.device.memory_bytes
    assert all(one.peak_memory_bytes <= 0.95 * memory_bytes for one in (*choice.best, *choice.families))
    assert choice.crowded is not None
    assert choice.crowded.peak_memory_bytes > 0.95 * memory_bytes
    assert choice.crowded.strategy == without.best[0].strategy
    assert without.crowded is None


def test_departures_are_those_that_are_counted_plan_by_plan() -> None:
    choice = choice_of("mixture", "0")
    kinds: set[str] = set()
    for one in (*choice.best, *choice.families, choice.fastest):
        memory_share = one.peak_memory_bytes / one.space.setting.cluster.device.memory_bytes
        num_layers = one.space.setting.model.num_layers
        assert len(one.departures) == num_departures(one.strategy, memory_share, num_layers)
        assert one.step_seconds <= one.counted_seconds <= MOST_COUNTED * one.step_seconds
        kinds.update(one.departures)
    assert len(kinds) > 5
