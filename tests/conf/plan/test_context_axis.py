"""Sizes of context parallelism that cannot exist, and what the errors propose."""

from __future__ import annotations

import pytest

from conf.errors import InfeasiblePlan
from conf.plan.setup import Setup
from sweeps.planner.plans.space import context_parallel_sizes
from sweeps.planner.request import search_request
from tests.composed import composed, load, setup_of
from tests.messages import refused


def setup(*overrides: str) -> Setup:
    """Of a 70B on four nodes, which this package's own trainer need not be able to run."""
    sizes = ["parallel.world_size=32", "parallel.tensor_parallel_size=4", "batch.global_batch_size=128"]
    return setup_of(["model=llama-3.1-70b", "cluster=dgx-h100", "precision=bf16", *sizes, *overrides])


def test_context_ranks_are_none_of_the_replicas() -> None:
    assert setup("parallel.context_parallel_size=2").data_parallel_size == 4


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["parallel.context_parallel_size=8", "model.seq_length=8200"], "parallel.context_parallel_size"),
        (
            ["parallel.context_parallel_size=2", "parallel.sequence_parallel=true", "model.seq_length=8200"],
            "parallel.context_parallel_size",
        ),
        (["parallel.context_parallel_size=3"], "parallel.world_size"),
    ],
)
def test_sizes_that_cut_nothing_equally_are_refused(overrides: list[str], key: str) -> None:
    with refused(InfeasiblePlan, key):
        setup(*overrides)


def test_a_way_of_keys_and_values_needs_ranks_among_which_they_go() -> None:
    with refused(InfeasiblePlan, "parallel.context_exchange"):
        setup("parallel.context_exchange=gather")


def test_a_training_that_drops_values_has_no_context_ranks_in_a_plan_or_a_search() -> None:
    dropping = ["model=llama-3.1-8b", "cluster=dgx-h100", "precision=bf16", "training.dropout=0.1"]
    ranks = ["parallel.world_size=16", "batch.global_batch_size=64", "parallel.context_parallel_size=2"]
    for refusing in (
        lambda: load([*dropping, *ranks]).experiment(),
        lambda: search_request(composed([*dropping, *ranks])),
    ):
        with refused(InfeasiblePlan, "training.dropout"):
            refusing()
    (space,) = search_request(composed([*dropping, *ranks[:2]])).spaces
    assert context_parallel_sizes(space, 1) == [1]
