"""The plans that `search=bayes` chooses from: each is there once, and is found by its experiment."""

from __future__ import annotations

import pytest

from conf.plan.knobs import KNOB
from sweeps.planner.request import search_request
from sweeps.search.layouts.candidates import PlansOfSpaces
from tests.composed import composed

MEGATRON = [
    *("model=gpt-22b", "cluster=dgx-h100", "precision=bf16", "trainer=megatron-lm", "search=bayes"),
    *("parallel.world_size=32", "batch.global_batch_size=64", "parallel.tensor_parallel_size=4"),
]


@pytest.mark.parametrize("placed", [{}, {"pipeline_before_data": True}, {"zero_group_size": 2}], ids=str)
def test_ranks_and_states_stay_where_they_are_configured(placed: dict[str, bool | int]) -> None:
    pins = [f"{KNOB[name].key}={str(value).lower()}" for name, value in placed.items()]
    wanted = search_request(composed([*MEGATRON, *pins]))
    plans = PlansOfSpaces(wanted.spaces, wanted.settings)
    rows = range(0, sum(len(kind) for _, kind in plans.by_kind), 97)
    experiments = {row: found for row in rows if (found := plans.experiment(row)) is not None}
    assert len(experiments) > 3
    for name in ("pipeline_before_data", "zero_group_size", "offload_optimizer"):
        assert {getattr(each.parallel, name) for each in experiments.values()} == {placed.get(name, KNOB[name].plain)}
    assert [plans.row_of(each) for each in experiments.values()] == list(experiments)
