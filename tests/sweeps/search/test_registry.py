"""Which plans a search chooses among."""

from __future__ import annotations

from typing import get_args

import pytest

from conf.compose.load import compose
from conf.folders import options
from conf.overrides import Overrides
from conf.types.sweep_spec import PLANNED, SearchPlan
from costs import IMPLEMENTATIONS, estimate
from sweeps.points.plan import plan_sweep
from sweeps.search.layouts.bayes import Bayes
from sweeps.search.layouts.candidates import priced_experiment
from sweeps.search.registry import SEARCHES, search_for
from tests.composed import composed, load


@pytest.mark.slow
def test_a_stand_in_is_searched_on_every_number_of_ranks_that_its_points_take() -> None:
    # On one rank some kinds of plans, such as interleaved ones, do not exist at all.
    asked = compose(Overrides.parse(["sweep=175b", "search=bayes"]))
    search = search_for(asked, plan_sweep(asked, proxy=True, git_sha=""))
    assert isinstance(search, Bayes)
    plans = search.candidates.prices.plans
    sizes = plans.tensor_parallel_size * plans.pipeline_parallel_size * plans.data_parallel_size
    assert set(sizes.tolist()) == {1, 2, 4, 8}


def test_a_plan_is_weighed_at_the_costs_of_the_trainer_that_runs_it() -> None:
    experiment = load(["sweep=smoke", "trainer.costs_of=megatron-core"]).experiment()
    predicted = estimate(experiment, IMPLEMENTATIONS["megatron-core"]).step_seconds
    assert list(priced_experiment(experiment).step_seconds) == pytest.approx([predicted], rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "axis",
    [
        "axes={parallel.world_size:{low:2,high:4,step:2}}",
        "zip=[{parallel.world_size:[2,4],parallel.tensor_parallel_size:[1,2]}]",
    ],
)
def test_every_number_of_devices_on_an_axis_is_searched_however_the_axis_is_written(axis: str) -> None:
    asked = composed(["sweep=smoke", "search=bayes", "parallel.recompute=none", f"+sweep.{axis}"])
    search = search_for(asked, plan_sweep(asked, proxy=False, git_sha=""))
    assert isinstance(search, Bayes)
    plans = search.candidates.prices.plans
    sizes = plans.tensor_parallel_size * plans.pipeline_parallel_size * plans.data_parallel_size
    assert set(sizes.tolist()) == {2, 4}


def test_every_search_of_the_package_has_its_entry_and_no_other_has_one() -> None:
    assert set(SEARCHES) == set(options("search")) == set(get_args(SearchPlan.model_fields["kind"].annotation))
    assert set(PLANNED) < set(SEARCHES)
