"""Two batches of one plan tell the network from the pace of the devices; other pairs of runs do not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from diagnose.diagnosis import Diagnosis, diagnose
from diagnose.difference import difference
from diagnose.network_fit import network_of
from diagnose.runs import UserRun
from diagnose.understood import understood
from tests.diagnose.made_run import fact, made_run, steps_of

SHARDED = {"tp": "1", "sequence_parallel": None, "zero_stage": "1", "micro_batch": "1", "network_gbits_per_node": "400"}


def measured_on(gigabits: str, batch: str, columns: Mapping[str, str] = {}, noise: float = 0.002) -> Diagnosis:
    """A run whose files declare 400 Gb/s a node, and whose steps take a quarter longer than on another network."""
    run = made_run(columns={**SHARDED, "global_batch": batch, **columns})
    steps = seconds_on(run, gigabits)
    run.steps = steps_of([1.25 * steps * (1 + noise * (place % 3 - 1)) for place in range(12)])
    return diagnose(run)


def seconds_on(run: UserRun, gigabits: str) -> float:
    declared = run.columns["network_gbits_per_node"]
    run.columns["network_gbits_per_node"] = fact(gigabits, 30)
    predicted = understood(run, None).predicted
    run.columns["network_gbits_per_node"] = declared
    assert predicted is not None
    return predicted.step_seconds


@pytest.mark.parametrize("gigabits", [55, 160, 400])
def test_two_batches_find_the_network_beside_any_pace_of_the_devices(gigabits: int) -> None:
    found = network_of(measured_on(str(gigabits), "64"), measured_on(str(gigabits), "512"))
    assert found is not None
    assert found.low < gigabits < found.high < 1.3 * found.low
    is_declared = gigabits == 400
    assert ("as declared (400)" in found.in_words) == is_declared
    assert ("not the 400 that are declared" in found.in_words) != is_declared


def test_a_pace_that_holds_for_the_devices_alone_finds_it_as_well() -> None:
    def with_pace(batch: str) -> Diagnosis:
        run = made_run(columns={**SHARDED, "global_batch": batch})
        slow, free = seconds_on(run, "55"), seconds_on(run, "4000000")
        run.steps = steps_of([slow + 0.25 * free] * 12)
        return diagnose(run)

    found = network_of(with_pace("64"), with_pace("512"))
    assert found is not None
    assert 0.99 * found.low < 55 < found.high


@pytest.mark.parametrize(
    "columns",
    [{"tp": "2"}, {"num_gpus": "8"}, {"recompute": "full"}, {"global_batch": "64"}],
    ids=["another plan", "one node", "another recomputation", "the same batch"],
)
def test_runs_that_differ_in_more_than_the_batch_or_not_at_all_tell_nothing(columns: Mapping[str, str]) -> None:
    first = {"num_gpus": columns["num_gpus"]} if "num_gpus" in columns else {}
    assert network_of(measured_on("55", "64", first), measured_on("55", "512", columns)) is None


def test_steps_that_spread_too_wide_tell_nothing() -> None:
    assert network_of(measured_on("55", "256", noise=0.2), measured_on("55", "512", noise=0.2)) is None


def test_the_difference_of_two_runs_says_it() -> None:
    found = difference(measured_on("55", "64"), measured_on("55", "512"))
    assert found.network is not None
    assert "Gb/s a node, not the 400 that are declared" in found.network.in_words
