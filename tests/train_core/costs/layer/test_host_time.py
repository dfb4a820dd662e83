"""What the host needs to launch a layer, counted by hand for the trainers as they are declared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.train_core.costs.priced import setting_of, shard_of, with_model, with_trainer
from train_core.costs.layer.layer_costs import (
    REPEATED_SECONDS,
    has_fused_softmax,
    launch_seconds,
    layer_costs,
    waiting_seconds,
)
from train_core.costs.setting import Setting

LAUNCH, CALL = 1e-5, 1e-4


def setting(trainer: str = "megatron-lm", cluster: str = "selene", **values: Any) -> Setting:
    counted = {"launch_seconds": LAUNCH, "collective_call_seconds": CALL, **values}
    return with_trainer(setting_of("gpt-22b", cluster, trainer=trainer), **counted)


def test_a_pass_is_as_many_launches_as_the_trainer_makes() -> None:
    """Megatron-LM of 2021: 17 forward and 34 backward."""
    forward, backward = launch_seconds(setting(), shard_of(1, 4))
    assert (forward, backward) == pytest.approx((17 * LAUNCH, 34 * LAUNCH))


def test_tensor_ranks_call_two_collectives_each_way() -> None:
    forward, backward = launch_seconds(setting(), shard_of(2, 4))
    assert (forward, backward) == pytest.approx((17 * LAUNCH + 2 * CALL, 34 * LAUNCH + 2 * CALL))


@pytest.mark.parametrize(("recompute", "again"), [("none", 0), ("selective", 5), ("full", 17), ("pointwise", 0)])
def test_what_is_recomputed_is_launched_again_and_has_a_cost_around_it(recompute: str, again: int) -> None:
    _, backward = launch_seconds(setting(), shard_of(1, 4, recompute=recompute))
    assert backward == pytest.approx((34 + again) * LAUNCH + (REPEATED_SECONDS if again else 0.0))


@pytest.mark.parametrize(
    ("heads", "tensor", "micro_batch", "is_fused"),
    [(64, 8, 1, True), (16, 8, 1, False), (16, 8, 2, True), (2, 1, 1, False), (6, 1, 2, True)],
)
def test_the_fused_softmax_takes_matrices_by_fours(heads: int, tensor: int, micro_batch: int, is_fused: bool) -> None:
    of_heads = with_model(setting(), num_attention_heads=heads)
    shard = shard_of(tensor, micro_batch)
    assert has_fused_softmax(of_heads, shard) == is_fused
    more = 0 if is_fused else 7
    calls = 2 * CALL if tensor > 1 else 0.0
    forward, backward = launch_seconds(of_heads, shard)
    assert (forward, backward) == pytest.approx(((17 + more) * LAUNCH + calls, (34 + more) * LAUNCH + calls))


def test_flash_attention_has_no_softmax_of_its_own() -> None:
    of_heads = with_model(setting("megatron-core"), num_attention_heads=2)
    assert has_fused_softmax(of_heads, shard_of(1, 1))


@pytest.mark.parametrize(
    ("host", "device", "waits"), [(3.0, 2.0, 1.0), (2.0, 3.0, 0.0), (2.0, 2.0, 0.0), (0.0, 1.0, 0.0)]
)
def test_a_device_waits_for_what_its_host_takes_longer(host: float, device: float, waits: float) -> None:
    assert waiting_seconds(host, np.array([device])) == waits


def test_a_layer_of_small_kernels_takes_what_the_host_takes() -> None:
    """A slow host decides both passes to the last microsecond, and its collectives are inside that."""
    slow = setting(launch_seconds=1.0)
    costs, (forward, backward) = layer_costs(slow, shard_of(2, 4)), launch_seconds(slow, shard_of(2, 4))
    assert costs.forward_seconds + costs.tensor_forward_seconds == pytest.approx(forward)
    behind = costs.input_gradient_seconds + costs.weight_gradient_seconds + costs.tensor_backward_seconds
    assert behind == pytest.approx(backward)


def test_a_fast_host_costs_nothing() -> None:
    fast, none = (layer_costs(setting(launch_seconds=each), shard_of(1, 8)) for each in (1e-9, 0.0))
    assert fast.forward_seconds == none.forward_seconds
    assert fast.input_gradient_seconds == none.input_gradient_seconds


def test_a_rank_on_a_cpu_launches_nothing() -> None:
    assert launch_seconds(setting(cluster="local"), shard_of(2, 1)) == (0.0, 0.0)
