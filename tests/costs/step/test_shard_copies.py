"""Copies around the collectives of ZeRO-2 and ZeRO-3."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conf.types.schema import MatmulRecipe
from costs.setting import Setting
from costs.step.sharding import shard_copy_seconds
from tests.costs.priced import plan_of, setting_of, with_efficiency

PARAMETERS = np.array([10**9])


def seconds(
    trainer: str, zero_stage: int, replicas: int = 8, recipe: MatmulRecipe | None = None
) -> tuple[float, float]:
    plain: Setting = with_efficiency(
        setting_of("llama-3.1-8b", "dgx-h100", trainer=trainer), memory=1.0, kernel_seconds=0.0
    )
    setting = replace(plain, matmul_recipe=recipe)
    plans = plan_of(setting, zero_stage=zero_stage, data_parallel_size=replicas)
    there, back = shard_copy_seconds(setting, plans, PARAMETERS)
    return float(np.ravel(there)[0]), float(np.ravel(back)[0])


def test_gathered_weights_and_gradients_of_fsdp2_are_copied() -> None:
    """4 bytes of a weight each way of the layer, 2 + 4 of its gradient, at 3.35 TB/s."""
    assert seconds("torchtitan", 3) == pytest.approx((4e9 / 3.35e12, (4e9 + 6e9) / 3.35e12))
    assert seconds("torchtitan", 2) == pytest.approx((0.0, 6e9 / 3.35e12))


def test_narrow_weights_are_copied_narrow() -> None:
    assert seconds("torchtitan", 3, recipe="fp8-tensorwise")[0] == pytest.approx(2e9 / 3.35e12)


def test_one_flat_tensor_is_cut_without_copies_and_one_replica_cuts_nothing() -> None:
    assert seconds("fsdp", 3) == (0.0, 0.0)
    assert seconds("torchtitan", 3, replicas=1) == (0.0, 0.0)
