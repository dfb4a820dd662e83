"""Choosing among clusters and numbers of devices: objectives, limits, time against money."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from conf.errors import ConfigError, InfeasiblePlan
from costs import IMPLEMENTATIONS, estimate
from costs.setting import Setting
from sweeps.planner.choosing.choice import (
    Candidate,
    Choice,
    choose_plans,
    dollars_per_step,
    gain_in_words,
    pareto_front,
)
from sweeps.planner.choosing.objectives import (
    PlanObjective,
    Training,
    objective_value,
    steps_for,
    total_dollars,
    total_hours,
)
from sweeps.planner.plans.space import Space
from tests.composed import load, load_cluster
from tests.messages import refused

MODEL = ["model=gpt-22b", "model.num_layers=24"]
BATCH = 64
NUM_STEPS = 1000
Chosen = Callable[[PlanObjective], Choice]


def offer(cluster: str, world_size: int, **pinned: object) -> Space:
    setting = Setting(load(MODEL).model, load_cluster(cluster), "bf16", IMPLEMENTATIONS["trisweep"])
    return Space(setting, world_size, BATCH, pinned=pinned)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def offers() -> list[Space]:
    return [
        offer(cluster, number, recompute_every=1, context_parallel_size=1, schedule="1f1b")
        for cluster, number in product(("selene", "dgx-h200"), (8, 16))
    ]


@pytest.fixture(scope="module")
def chosen(offers: list[Space]) -> Chosen:
    """The choice among all offers, without limits, made once for each objective."""
    return cache(lambda objective: choose_plans(offers, objective, Training(), top=5))


@pytest.mark.slow
@pytest.mark.parametrize(
    "objective",
    ["time", "cost", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("energy", "device-hours"))],
)
def test_the_best_by_an_objective_is_the_best_of_all_offers(
    offers: list[Space], chosen: Chosen, objective: PlanObjective
) -> None:
    choice = chosen(objective)
    values = [objective_value(objective, one.space, one.counted_seconds) for one in choice.best]
    alone = [choose_plans([space], objective, Training(), top=1) for space in offers]
    assert values == sorted(values)
    assert values[0] == min(objective_value(objective, one.best[0].space, one.best[0].counted_seconds) for one in alone)
    fastest = [objective_value(objective, one.fastest.space, one.fastest.step_seconds) for one in (choice, *alone)]
    assert fastest[0] == min(fastest[1:])
    assert len(choice.best_of_each) == len(offers)
    assert choice.num_strategies == sum(one.num_strategies for one in alone)


@pytest.mark.slow
def test_objectives_disagree(chosen: Chosen) -> None:
    """Or choosing by one of them would mean nothing."""
    places = {
        objective: (best.space.setting.cluster.name, best.space.world_size)
        for objective in ("time", "cost")
        for best in chosen(objective).best[:1]
    }
    assert places["time"][1] > places["cost"][1]


@pytest.mark.slow
def test_a_candidates_numbers_are_the_estimates(chosen: Chosen) -> None:
    settings = load([*MODEL, "precision=bf16"])
    for one in chosen("time").best:
        parts = settings.model_copy(update={"cluster": one.space.setting.cluster})
        predicted = estimate(one.strategy.experiment(parts))
        assert one.step_seconds == predicted.step_seconds
        assert one.step_terms == predicted.step_terms
        assert one.peak_memory_bytes == predicted.peak_memory_bytes
        assert one.worst_stage == predicted.worst_stage
        assert one.model_flops_per_second_per_device == pytest.approx(predicted.model_flops_per_second_per_device)


@pytest.mark.slow
def test_the_front_holds_what_nothing_beats_in_time_and_money(chosen: Chosen) -> None:
    everyone = chosen("time").best_of_each
    front = pareto_front(everyone)
    assert [one for one in everyone if not beaten(one, everyone)] == front
    assert 1 < len(front) < len(everyone)


def beaten(one: Candidate, others: tuple[Candidate, ...]) -> bool:
    """Another is at least as good in both, and better in one."""
    mine = (one.step_seconds, dollars_per_step(one))
    return any(
        other.step_seconds <= mine[0] and dollars_per_step(other) <= mine[1]
        for other in others
        if (other.step_seconds, dollars_per_step(other)) != mine
    )


@pytest.mark.slow
def test_a_budget_and_a_deadline_leave_what_keeps_both(offers: list[Space], chosen: Chosen) -> None:
    front = pareto_front(chosen("time").best_of_each)
    middle = front[len(front) // 2]
    free = Training(NUM_STEPS)
    budget = total_dollars(free, middle.space, middle.step_seconds)
    deadline = total_hours(free, middle.step_seconds)
    assert budget is not None
    assert deadline is not None
    limited = Training(NUM_STEPS, budget_dollars=budget * 1.0001, deadline_hours=deadline * 1.0001)
    choice = choose_plans(offers, "time", limited, top=10)
    assert choice.best[0].step_seconds == middle.step_seconds
    assert 0 < choice.num_feasible < choice.num_fitting
    for one in choice.best:
        assert (total_dollars(limited, one.space, one.step_seconds) or 0) <= budget * 1.0001
        assert (total_hours(limited, one.step_seconds) or 0) <= deadline * 1.0001


@pytest.mark.slow
def test_a_budget_that_nothing_meets_says_what_the_cheapest_costs(offers: list[Space], chosen: Chosen) -> None:
    free = Training(NUM_STEPS)
    cheapest = chosen("cost").best[0]
    dollars = total_dollars(free, cheapest.space, cheapest.step_seconds)
    with refused(InfeasiblePlan, "--budget") as caught:
        choose_plans(offers, "time", Training(NUM_STEPS, budget_dollars=1), top=1)
    assert f"${dollars:,.2f}" in str(caught.value)


@pytest.mark.slow
def test_a_deadline_that_nothing_meets_says_what_the_fastest_takes(offers: list[Space], chosen: Chosen) -> None:
    hours = total_hours(Training(NUM_STEPS), chosen("time").best[0].step_seconds)
    with refused(InfeasiblePlan, "--deadline") as caught:
        choose_plans(offers, "time", Training(NUM_STEPS, deadline_hours=0.01), top=1)
    assert f" {hours:,.1f} hours" in str(caught.value)


@pytest.mark.slow
def test_limits_that_only_different_plans_meet_say_both(offers: list[Space], chosen: Chosen) -> None:
    front = pareto_front(chosen("time").best_of_each)
    free = Training(NUM_STEPS)
    budget = (total_dollars(free, front[-1].space, front[-1].step_seconds) or 0) * 1.0001
    deadline = (total_hours(free, front[0].step_seconds) or 0) * 1.0001
    with refused(InfeasiblePlan, "--budget"):
        choose_plans(offers, "time", Training(NUM_STEPS, budget, deadline), top=1)


def test_a_limit_needs_the_length_of_the_training(offers: list[Space]) -> None:
    with refused(ConfigError, "--budget"):
        choose_plans(offers, "time", Training(budget_dollars=1e9), top=1)


@pytest.mark.parametrize("objective", ["cost", "time"])
def test_money_asked_of_a_cluster_without_prices_names_the_key(objective: PlanObjective) -> None:
    training = Training() if objective == "cost" else Training(NUM_STEPS, budget_dollars=1e9)
    with refused(ConfigError, "cluster.device.price_per_hour"):
        choose_plans([offer("frontier", 64)], objective, training, top=1)


def test_a_plan_that_gains_nothing_that_is_worth_a_word_has_no_words() -> None:
    first = choose_plans([offer("selene", 8)], "time", Training(), top=1).fastest
    slower, as_fast = (replace(first, step_seconds=first.step_seconds * factor) for factor in (1.02, 1.0004))
    assert gain_in_words(first, slower).startswith("2.0% faster on paper")
    assert gain_in_words(first, as_fast) == gain_in_words(slower, first) == ""


@pytest.mark.parametrize("each", [False, True])
def test_a_missing_price_is_refused_before_anything_is_searched(each: bool) -> None:
    objective: PlanObjective = "time" if each else "cost"
    without_a_plan = offer("frontier", 64, tensor_parallel_size=7)
    with refused(ConfigError, "cluster.device.price_per_hour"):
        choose_plans([without_a_plan], objective, Training(), top=1, each=each)


def test_what_fits_nowhere_says_how_much_the_smallest_plan_needs() -> None:
    with refused(InfeasiblePlan, "cluster.device.memory_bytes"):
        choose_plans([offer("selene", 1)], "time", Training(), top=1)


def test_pinned_knobs_that_no_plan_has_are_named() -> None:
    with refused(InfeasiblePlan, "parallel.tensor_parallel_size"):
        choose_plans([offer("selene", 16, tensor_parallel_size=7)], "time", Training(), top=1)
    several = offer("selene", 16, tensor_parallel_size=7, micro_batch_size=2)
    with refused(InfeasiblePlan, "parallel.world_size"):
        choose_plans([several], "time", Training(), top=1)


def test_listed_layers_that_no_plan_has_are_shown_as_a_person_writes_them() -> None:
    listed = offer("selene", 7, layers_per_stage=(24, 24))
    with refused(InfeasiblePlan, "parallel.layers_per_stage"):
        choose_plans([listed], "time", Training(), top=1)
    several = offer("selene", 7, layers_per_stage=(24, 24), micro_batch_size=2)
    with refused(InfeasiblePlan, "parallel.world_size"):
        choose_plans([several], "time", Training(), top=1)


def test_who_has_pinned_nothing_is_told_of_the_trainer_and_not_of_knobs() -> None:
    with refused(InfeasiblePlan, "parallel.world_size"):
        choose_plans([offer("selene", 100_003)], "time", Training(), top=1)


def test_tokens_become_whole_steps() -> None:
    assert steps_for(10, 5) == 2
    assert steps_for(11, 5) == 3
    assert steps_for(2**60 + 1, 2**20) == 2**40 + 1
    assert steps_for(10**400, 1) == 10**400
