"""Real ranks measure on this machine, at tiny sizes, and end badly."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from calibrate.calibration import draft_of_rates
from calibrate.rates_job import Here
from conf.compose.load import load_cluster
from conf.errors import UsageError
from rates.record import RatesFolder
from tests.conftest import TinyRatesPlan
from tests.messages import refused


def silent(line: str) -> None:
    return None


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "rates.device" in words_of(child)]


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # another child that has ended meanwhile
        return []


@pytest.mark.slow
def test_two_ranks_measure_everything_and_their_rates_compose(
    folder: RatesFolder, tiny_rates_plan: TinyRatesPlan, conf_copy: Path
) -> None:
    told: list[str] = []
    rates = Here().measure(folder, tiny_rates_plan(2), told.append)
    assert {(one.dtype, one.is_large) for one in rates.products} == {("fp32", True), ("fp32", False)}
    assert len(rates.attentions) == 1
    assert {(one.link, one.pattern, one.num_ranks, one.num_bytes) for one in rates.link_times} == {
        ("loopback", pattern, 2, num_bytes)
        for pattern in ("all_reduce", "all_gather", "reduce_scatter", "transfer")
        for num_bytes in (64, 2**20)
    }
    assert all(one.seconds.lowest <= one.seconds.median <= one.seconds.highest for one in rates.link_times)
    assert rates.environment.backend == "gloo"
    assert any("of 5: " in line for line in told)
    local = load_cluster("local")
    draft_of_rates(local, "local", rates).write()
    # a tiny product is no peak, so efficiencies may come out at 1
    assert load_cluster("local").device.peak_flops_per_second["fp32"] != 0.18e12


@pytest.mark.thorough  # than two ranks
@pytest.mark.slow
def test_one_rank_alone_measures_no_link_and_a_later_failure_does_not_pass_for_it(
    folder: RatesFolder, tiny_rates_plan: TinyRatesPlan, conf_copy: Path
) -> None:
    rates = Here().measure(folder, tiny_rates_plan(1), silent)
    assert rates.link_times == ()
    local = load_cluster("local")
    new = draft_of_rates(local, "local", rates)
    assert any("link loopback: left as it was" in note for note in new.notes)
    new.write()
    assert load_cluster("local").links == local.links
    greedy = tiny_rates_plan(1).model_copy(update={"memory_bytes": 2**60})
    with refused(UsageError, "rank-0.log", recorded=False):
        Here().measure(folder, greedy, silent)
    assert not folder.rates.exists()


@pytest.mark.thorough  # than job/test_trial
@pytest.mark.slow
def test_a_rank_that_fails_is_named_with_its_cause_and_the_others_end(
    folder: RatesFolder, tiny_rates_plan: TinyRatesPlan
) -> None:
    greedy = tiny_rates_plan(2).model_copy(update={"memory_bytes": 2**60})
    with refused(UsageError, f"{folder.path}/logs/rank-", recorded=False):
        Here().measure(folder, greedy, silent)
    assert children() == []
    assert not folder.rates.exists()


@pytest.mark.thorough  # than an interrupt
@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_measurement(folder: RatesFolder, tiny_rates_plan: TinyRatesPlan) -> None:
    endless = tiny_rates_plan(2).model_copy(update={"sample_seconds": 60.0, "memory_bytes": 2**24})

    def kill(line: str) -> None:
        # On a loaded machine the first line may come before the second rank has started.
        if line and len(ranks := children()) == 2:
            ranks[1].kill()

    with refused(UsageError, "rank-1.log"):
        Here().measure(folder, endless, kill)
    assert children() == []


@pytest.mark.slow
def test_an_interrupt_ends_the_ranks(folder: RatesFolder, tiny_rates_plan: TinyRatesPlan) -> None:
    def interrupt(line: str) -> None:
        assert len(children()) == 2
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        Here().measure(folder, tiny_rates_plan(2), interrupt)
    assert children() == []
