"""Random plans for other trainers: always the same ones, and each is printed or refused with a reason."""

from __future__ import annotations

import random

from benchmarks.other_trainers import (
    NUM_PLANS,
    SHARES,
    PlanVerdict,
    RandomPlan,
    drawn_plans,
    experiment_or_reason,
    verdicts,
)
from conf.plan.experiment import Experiment


def test_plans_are_drawn_alike_each_time() -> None:
    plans = drawn_plans()
    assert len(plans) == NUM_PLANS
    assert {trainer for trainer, _ in plans} == set(SHARES)
    again = random.Random(3)
    assert RandomPlan("torchtitan", random.Random(3)).overrides() == RandomPlan("torchtitan", again).overrides()


def test_a_drawn_plan_is_printed_or_refused_with_a_reason() -> None:
    found = [experiment_or_reason(overrides) for _, overrides in drawn_plans()[::43]]
    assert all(isinstance(each, Experiment) or ": " in each for each in found)


def test_a_plan_that_is_refused_here_is_asked_nowhere() -> None:
    overrides = ("trainer=torchtitan", "model=llama-3.1-8b", "cluster=dgx-h100", "parallel.schedule=zero-bubble")
    (verdict,) = verdicts([("torchtitan", overrides)])
    assert isinstance(verdict, PlanVerdict)
    assert verdict.refusal
    assert not verdict.asked
