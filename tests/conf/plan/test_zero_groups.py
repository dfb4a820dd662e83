"""Groups of replicas that share out the optimizer's state."""

from __future__ import annotations

import pytest

from conf.errors import InfeasiblePlan
from conf.plan.setup import Setup
from tests.composed import setup_of
from tests.messages import refused

LLAMA = ("model=llama-3.1-8b", "cluster=dgx-h100", "precision=bf16", "batch.global_batch_size=96")


def setup(*overrides: str) -> Setup:
    return setup_of([*LLAMA, "parallel.world_size=48", "parallel.zero_stage=1", *overrides])


@pytest.mark.parametrize("size", ["null", "1", "8", "48"])
def test_groups_hold_as_many_replicas_each(size: str) -> None:
    assert setup(f"parallel.zero_group_size={size}").data_parallel_size == 48


@pytest.mark.parametrize(
    ("size", "others"),
    [
        (10, ()),
        (96, ()),
        (16, ("parallel.context_parallel_size=2", "parallel.tensor_parallel_size=2")),
    ],
)
def test_groups_that_leave_replicas_over_are_refused(size: int, others: tuple[str, ...]) -> None:
    with refused(InfeasiblePlan, "parallel.zero_group_size"):
        setup(f"parallel.zero_group_size={size}", *others)
