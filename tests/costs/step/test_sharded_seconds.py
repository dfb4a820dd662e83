"""What ZeRO-2 and ZeRO-3 do for every micro-batch: collectives beside computation, and what the host does for them."""

from __future__ import annotations

import numpy as np
import pytest

from costs.collectives import ring_of, shown_seconds
from costs.price import Prices
from costs.setting import Setting
from tests.costs.priced import priced, setting_of, with_links, with_trainer

LAYERS, RANKS = 80, 16
SHARDED = {"data_parallel_size": RANKS, "zero_stage": 3}


def llama() -> Setting:
    return setting_of("llama-2-70b", "dgx-h100", trainer="fsdp")


def data_seconds(prices: Prices) -> float:
    return float(prices.step.data_seconds[0])


def shown_share(setting: Setting) -> float:
    """Share that shows of a collective which is latency alone, although computation covers it."""
    return float(shown_seconds(setting, np.ones(1), np.full(1, np.inf), pace=0.0)[0])


def test_what_zero_3_gathers_shows_in_part_beside_computation_and_its_ends_are_collectives_too() -> None:
    """Latency alone: a gather of each layer for each pass, one of the ends for both, and a scatter of all of them."""
    alone = with_links(with_trainer(llama(), sharded_overlap=0.0), bandwidth_bytes_per_second=1e9)
    one = ring_of(alone, np.array([RANKS]), np.array([1])).gather_seconds(np.zeros(1))[0]
    assert data_seconds(priced(alone, **SHARDED)) == pytest.approx((3 * LAYERS + 2) * one, rel=1e-3)
    beside = with_trainer(alone, sharded_overlap=1.0)
    shown = shown_share(beside) * (3 * LAYERS + 2) * one
    assert data_seconds(priced(beside, **SHARDED)) == pytest.approx(shown, rel=1e-3)


@pytest.mark.parametrize(("zero_stage", "messages"), [(1, 0), (2, 12), (3, 4 + 4 + 12)])
def test_a_list_of_one_tensor_a_rank_takes_the_host_time_for_each_rank_which_nothing_hides(
    zero_stage: int, messages: int
) -> None:
    plain = with_trainer(llama(), gathered_messages=4, scattered_messages=12)
    listed = with_trainer(plain, listed_rank_seconds=1e-5)
    plan = SHARDED | {"zero_stage": zero_stage}
    more = data_seconds(priced(listed, **plan)) - data_seconds(priced(plain, **plan))
    assert more == pytest.approx(messages * LAYERS * RANKS * 1e-5)


def test_layers_above_deepspeeds_limit_are_gathered_beside_nothing_and_once_more_when_they_are_repeated() -> None:
    """Latency alone: three gathers and a scatter of 80 layers, and of the ends, all of which are shown."""
    free = with_trainer(with_links(llama(), bandwidth_bytes_per_second=1e15), sharded_overlap=1.0)
    one = ring_of(free, np.array([RANKS]), np.array([1])).gather_seconds(np.zeros(1))[0]
    plan = {"data_parallel_size": RANKS, "zero_stage": 3, "recompute": "full"}
    above, below = (data_seconds(priced(with_trainer(free, live_parameters=n), **plan)) for n in (10**8, 10**9))
    assert above == pytest.approx(4 * 81 * one, rel=1e-2)
    assert below == pytest.approx(shown_share(free) * 3 * 81 * one, rel=1e-2)
