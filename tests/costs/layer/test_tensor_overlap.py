"""Tensor-parallel collectives in pieces, beside the products whose operands and results they move."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costs.layer.layer_costs import layer_costs
from costs.layer.shard import Shard
from costs.setting import Setting
from tests.costs.priced import setting_of, shard_of, with_links, with_trainer


def setting(overlap: float) -> Setting:
    plain = setting_of("gpt-175b", "dgx-h100", trainer="megatron-core")
    return with_trainer(plain, tensor_overlap=overlap)


def shard(**values: bool | str) -> Shard:
    return shard_of(2, 1, sequence_parallel=True, **values)  # type: ignore[arg-type]


def tensor_seconds(of: Setting, at: Shard) -> float:
    costs = layer_costs(of, at)
    return float(costs.tensor_forward_seconds.item() + costs.tensor_backward_seconds.item())


def test_what_runs_beside_products_shows_only_in_part() -> None:
    alone, beside = layer_costs(setting(0.0), shard()), layer_costs(setting(1.0), shard())
    # Alone, each of the four collectives starts first.
    starts, shown = 4 * setting(0.0).scale.start, setting(1.0).scale.shown
    assert beside.tensor_forward_seconds.item() == pytest.approx(shown * (alone.tensor_forward_seconds.item() - starts))


def test_a_repeated_forward_repeats_its_collectives() -> None:
    none, full = layer_costs(setting(1.0), shard()), layer_costs(setting(1.0), shard(recompute="full"))
    more = full.tensor_backward_seconds - none.tensor_backward_seconds
    assert more.item() == pytest.approx(none.tensor_forward_seconds.item())


def test_slow_links_show_what_outlasts_the_products() -> None:
    slow = with_links(setting(1.0), bandwidth_bytes_per_second=0.01)
    alone = with_links(setting(0.0), bandwidth_bytes_per_second=0.01)
    assert tensor_seconds(slow, shard()) > 0.9 * tensor_seconds(alone, shard())


def test_without_sequence_parallelism_nothing_is_cut() -> None:
    both = shard_of(2, 1)
    assert tensor_seconds(setting(1.0), both) == tensor_seconds(setting(0.0), both)


def test_columns_are_priced_as_single_plans_are() -> None:
    each = (shard(), shard_of(2, 1))
    mixed = Shard(*(np.concatenate([getattr(at, name) for at in each]) for name in Shard.__slots__))
    together = layer_costs(setting(1.0), mixed).tensor_backward_seconds
    for index, at in enumerate(each):
        assert together[index] == layer_costs(setting(1.0), at).tensor_backward_seconds.item()


def test_narrow_operands_are_gathered_in_fewer_bytes() -> None:
    wide = setting(1.0)
    assert tensor_seconds(replace(wide, matmul_recipe="fp8-delayed"), shard()) < 0.9 * tensor_seconds(wide, shard())
