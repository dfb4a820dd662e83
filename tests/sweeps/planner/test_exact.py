"""Plans priced together equal plans priced one by one, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from costs import STEP_TERMS, estimate
from costs.price import peak_bytes, price, price_step
from sweeps.planner.choosing.explain import priceable
from sweeps.planner.plans.shard_work import price_all_shards
from tests.sweeps.planner.conftest import Case, drawn

NUM_COMPARED = 50  # of each case with `estimate`; benchmarks/search.py compares 10,000
NUM_PRICED = 500


@pytest.mark.slow
def test_every_term_and_every_byte_equals_the_estimate(case: Case) -> None:
    rng, trainer = np.random.default_rng(3), case.space.setting.implementation
    for block, index in drawn(case.space, rng, NUM_COMPARED):
        prices = price(block.setting, block.rows(index))
        for row, strategy in enumerate(case.strategies(block, index)):
            predicted = estimate(priceable(strategy, case.settings, trainer), trainer)
            for name in STEP_TERMS:
                assert getattr(prices.step, name)[row] == getattr(predicted.step_terms, name), (name, strategy)
            assert prices.step_seconds[row] == predicted.step_seconds
            assert prices.peak_memory_bytes[row] == predicted.peak_memory_bytes
            assert prices.worst_stage[row] == predicted.worst_stage


def test_a_block_equals_its_plans_one_after_the_other(case: Case) -> None:
    """The shapes that a search broadcasts change nothing."""
    rng, table = np.random.default_rng(4), price_all_shards([case.space])
    for block, index in drawn(case.space, rng, NUM_PRICED):
        rows, setting = block.rows(index), block.setting
        alone = price(setting, rows)
        together = price_step(setting, block.plans, table.of(block.plans))
        bytes_together = peak_bytes(setting, block.plans, table.of(block.plans))
        for name in STEP_TERMS:
            column = np.broadcast_to(getattr(together, name), block.shape).ravel()[index]
            assert np.array_equal(column, np.broadcast_to(getattr(alone.step, name), len(index))), name
        assert np.array_equal(np.broadcast_to(together.total_seconds, block.shape).ravel()[index], alone.step_seconds)
        assert np.array_equal(np.broadcast_to(bytes_together, block.shape).ravel()[index], alone.peak_memory_bytes)
