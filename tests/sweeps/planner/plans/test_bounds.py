"""No plan is faster than the bound by which a search leaves plans unpriced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costs import IMPLEMENTATIONS
from costs.price import price_step
from costs.setting import Setting
from sweeps.planner.plans.blocks import blocks
from sweeps.planner.plans.bounds import Bounds
from sweeps.planner.plans.space import Space
from tests.composed import load

LLAMA = ["model=llama-3.1-8b", "model.num_layers=10", "cluster=dgx-h100", "precision=bf16"]


@pytest.mark.parametrize("link", [2e9, 25e9])
@pytest.mark.parametrize("offloads", [False, True])
def test_no_plan_is_faster_than_its_bound(offloads: bool, link: float) -> None:
    """Over a slow link a layer that recomputes is faster than one that keeps, and sends, all."""
    settings = load(LLAMA)
    cluster = settings.cluster.model_copy(update={"host_bytes_per_second": link})
    plain = Setting(settings.model, cluster, "bf16", IMPLEMENTATIONS["trisweep"])
    space = Space(replace(plain, offload_activations=offloads), world_size=4, global_batch_size=6)
    bounds, lowest = Bounds([space]), np.inf
    for block in blocks(space):
        prices = price_step(block.setting, block.plans, bounds.table.of(block.plans))
        shares = np.where(block.legal, prices.total_seconds / bounds.of_plans(block), np.inf)
        lowest = min(lowest, float(shares.min()))
    assert 1 <= lowest < np.inf
