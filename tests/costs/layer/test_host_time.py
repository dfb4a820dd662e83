"""What the host needs to launch a layer, counted by hand for the trainers as they are declared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from costs.layer.layer_costs import (
    REPEATED_SECONDS,
    backward_waits,
    has_fused_softmax,
    launch_seconds,
    layer_costs,
    waiting_seconds,
)
from costs.setting import Setting
from tests.costs.priced import setting_of, shard_of, with_model, with_trainer

LAUNCH, CALL = 1e-5, 1e-4


def setting(trainer: str = "megatron-lm", cluster: str = "selene", **values: Any) -> Setting:
    counted = {"launch_seconds": LAUNCH, "collective_call_seconds": CALL, **values}
    return with_trainer(setting_of("gpt-22b", cluster, trainer=trainer), **counted)


def test_a_pass_is_as_many_launches_as_the_trainer_makes() -> None:
    """Megatron-LM of 2021: 17 forward and 34 backward, of which 4 products make gradients of weights."""
    assert launch_seconds(setting(), shard_of(1, 4)) == pytest.approx((17 * LAUNCH, 30 * LAUNCH, 4 * LAUNCH))


def test_tensor_ranks_call_two_collectives_each_way() -> None:
    calls = 17 * LAUNCH + 2 * CALL, 30 * LAUNCH + 2 * CALL, 4 * LAUNCH
    assert launch_seconds(setting(), shard_of(2, 4)) == pytest.approx(calls)


@pytest.mark.parametrize(("recompute", "again"), [("none", 0), ("selective", 5), ("full", 17), ("pointwise", 0)])
def test_what_is_recomputed_is_launched_again_and_has_a_cost_around_it(recompute: str, again: int) -> None:
    _, to_input, weights = launch_seconds(setting(), shard_of(1, 4, recompute=recompute))
    assert to_input == pytest.approx((30 + again) * LAUNCH + (REPEATED_SECONDS if again else 0.0))
    assert weights == pytest.approx(4 * LAUNCH)


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
    forward, to_input, _ = launch_seconds(of_heads, shard)
    assert (forward, to_input) == pytest.approx(((17 + more) * LAUNCH + calls, (30 + more) * LAUNCH + calls))


def test_flash_attention_has_no_softmax_of_its_own() -> None:
    of_heads = with_model(setting("megatron-core"), num_attention_heads=2)
    assert has_fused_softmax(of_heads, shard_of(1, 1))


@pytest.mark.parametrize(
    ("host", "device", "waits"), [(3.0, 2.0, 1.0), (2.0, 3.0, 0.0), (2.0, 2.0, 0.0), (0.0, 1.0, 0.0)]
)
def test_a_device_waits_for_what_its_host_takes_longer(host: float, device: float, waits: float) -> None:
    assert waiting_seconds(setting(), host, np.array([device])) == waits


def test_a_layer_of_small_kernels_takes_what_the_host_takes() -> None:
    """A slow host decides both passes to the last microsecond, and its collectives are inside that."""
    slow = setting(launch_seconds=1.0)
    costs, (forward, to_input, weights) = layer_costs(slow, shard_of(2, 4)), launch_seconds(slow, shard_of(2, 4))
    assert costs.forward_seconds + costs.tensor_forward_seconds == pytest.approx(forward)
    assert costs.input_gradient_seconds + costs.tensor_backward_seconds == pytest.approx(to_input)
    assert costs.weight_gradient_seconds == pytest.approx(weights)


def test_a_fast_host_costs_nothing() -> None:
    fast, none = (layer_costs(setting(launch_seconds=each), shard_of(1, 8)) for each in (1e-9, 0.0))
    assert fast.forward_seconds == none.forward_seconds
    assert fast.input_gradient_seconds == none.input_gradient_seconds


@pytest.mark.parametrize("tensor", [1, 4])
def test_a_host_that_waits_for_every_kernel_and_its_device_work_in_turn(tensor: int) -> None:
    shard = shard_of(tensor, 8)
    blocked, alone = (
        layer_costs(setting(launch_seconds=launch, blocks_launches=True), shard) for launch in (LAUNCH, 0.0)
    )
    forward, to_input, weights = launch_seconds(setting(), shard)
    assert blocked.forward_seconds == pytest.approx(alone.forward_seconds + forward)
    assert blocked.input_gradient_seconds == pytest.approx(alone.input_gradient_seconds + to_input)
    assert blocked.weight_gradient_seconds == pytest.approx(alone.weight_gradient_seconds + weights)
    assert blocked.waiting_seconds == pytest.approx(forward + to_input + weights)
    # No collective runs beside the products for weights.
    hidden = layer_costs(setting(), shard)
    assert (blocked.tensor_backward_seconds > hidden.tensor_backward_seconds).all() == (tensor > 1)


def test_a_rank_on_a_cpu_launches_nothing() -> None:
    assert launch_seconds(setting(cluster="local"), shard_of(2, 1)) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("to_input", "weights", "waits"),
    [
        (1.0, 1.0, (2.0, 1.0)),  # the host is late for both
        (4.0, 1.0, (0.0, 0.0)),  # it launches products of weights while the device is at work for the input
        (3.0, 0.5, (0.0, 1.5)),
        (2.0, 9.0, (1.0, -1.0)),  # and, as these take long, the next pass
    ],
)
def test_inputs_and_weights_wait_apart_and_together_as_long_as_the_whole_pass(
    to_input: float, weights: float, waits: tuple[float, float]
) -> None:
    """A host of 3 seconds for the input and 2 for the weights."""
    early, late = backward_waits(setting(), 3.0, 2.0, np.array([to_input]), np.array([weights]))
    assert (early[0], late[0]) == waits
    assert early + late == waiting_seconds(setting(), 5.0, np.array([to_input + weights]))
