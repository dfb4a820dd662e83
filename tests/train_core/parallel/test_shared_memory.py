"""Collectives through shared memory against the same through gloo, over real ranks."""

from __future__ import annotations

import platform
import re
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
from torch import Tensor

from costs.axes import Layout
from tests.train_core.conftest import Worlds
from train_core.job.failures import failure_of, lost_a_peer
from train_core.parallel import shared_memory
from train_core.parallel.clock import Clock
from train_core.parallel.collectives import Axis, Pending, all_gather, all_reduce, reduce_scatter
from train_core.parallel.groups import build_mesh
from train_core.parallel.shared_memory import NUM_SLOTS, SLOT_BYTES, Offer, SharedMemory
from train_core.process.world import World

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors use gloo")


def tensor_axis(world: World) -> Axis:
    axis = build_mesh(Layout({"tensor": world.size}), world.rank, timeout=world.timeout).tensor
    assert axis.memory is not None
    return axis


def of_rank(rank: int, round: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(12, 5, generator=torch.Generator().manual_seed(100 * round + rank)).to(dtype)


def started(axis: Axis, dtype: torch.dtype, num_rounds: int) -> list[Pending]:
    return [
        collective(of_rank(axis.rank, round, dtype), axis)
        for round in range(num_rounds)
        for collective in (all_reduce, all_gather, reduce_scatter)
    ]


def both_ways(world: World, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Many collectives started before the first is waited for, and those waited for from the last to the first."""
    axis = tensor_axis(world)
    shown, sent = (started(one, dtype, 2 * NUM_SLOTS) for one in (axis, replace(axis, memory=None)))
    assert axis.memory is not None
    assert axis.memory.num_started == len(shown)
    return [(one.wait(), other.wait()) for one, other in zip(reversed(shown), reversed(sent), strict=True)]


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_ranks_that_share_memory_get_what_gloo_would_give(worlds: Worlds, num_ranks: int, dtype: torch.dtype) -> None:
    rtol, atol = (0.02, 0.05) if dtype == torch.bfloat16 else (1e-5, 1e-6)
    for pairs in worlds(num_ranks).run(both_ways, dtype):
        for shown, sent in pairs:
            torch.testing.assert_close(shown, sent, rtol=rtol, atol=atol)


def summed(world: World) -> Tensor:
    return all_reduce(of_rank(world.rank, 0, torch.bfloat16), tensor_axis(world)).wait()


def test_every_rank_computes_the_same_sum_to_the_last_bit(worlds: Worlds) -> None:
    first, *others = worlds(4).run(summed)
    assert all(torch.equal(first, other) for other in others)


def with_a_large_tensor(world: World) -> tuple[Tensor, int]:
    axis = tensor_axis(world)
    large = torch.full((SLOT_BYTES // 4 + 2,), float(axis.rank + 1))
    total = all_reduce(large, axis).wait()
    assert axis.memory is not None
    return total, axis.memory.num_started


def test_what_no_slot_holds_goes_through_gloo(worlds: Worlds) -> None:
    for total, num_shown in worlds(2).run(with_a_large_tensor):
        assert num_shown == 0
        assert torch.all(total == 3.0)


def beyond_reach(world: World) -> tuple[bool, Tensor]:
    real = Offer.memory
    if world.rank == 1:  # as on another node: the process of that number is none, or another one
        Offer.memory = lambda self, num_bytes: real(self._replace(token=bytes(len(self.token))), num_bytes)  # type: ignore[method-assign]
    try:
        axis = build_mesh(Layout({"tensor": world.size}), world.rank).tensor
    finally:
        Offer.memory = real  # type: ignore[method-assign]
    return axis.memory is None, all_reduce(torch.ones(3), axis).wait()


def test_where_one_rank_cannot_reach_it_none_uses_shared_memory(worlds: Worlds) -> None:
    for uses_gloo, total in worlds(2).run(beyond_reach):
        assert uses_gloo
        assert torch.all(total == 2.0)


def left_waiting(world: World, num_before: int) -> tuple[str, int]:
    """Rank 1 starts `num_before` collectives, waits for none and goes; rank 0 starts one more and waits for it."""
    clock = Clock()
    axis = build_mesh(Layout({"tensor": world.size}), world.rank, clock).tensor
    assert axis.group is not None
    memory = SharedMemory.of(range(world.size), world.rank, axis.group, timedelta(seconds=0.2))
    axis = replace(axis, memory=memory)
    for _ in range(num_before):
        all_reduce(torch.ones(3), axis)
    if world.rank == 1:
        return "", 0
    earlier = clock.num_waits
    with pytest.raises(TimeoutError) as raised:
        all_reduce(torch.ones(3), axis).wait()
    assert lost_a_peer(failure_of(0, raised.value))
    return str(raised.value), clock.num_waits - earlier


@pytest.mark.parametrize("num_before", [0, NUM_SLOTS], ids=["shows nothing", "does not read, so that no slot is free"])
def test_a_rank_that_does_not_come_is_waited_for_no_longer_than_the_timeout(worlds: Worlds, num_before: int) -> None:
    (message, num_waits), _ = worlds(2).run(left_waiting, num_before)
    assert re.match(r"Timed out waiting \d+ s for another rank", message), "of however late a busy machine let it look"
    assert num_waits == 1, "the clock, by which a hang is found, knew of it"


def test_a_header_leaves_tensors_at_the_start_of_a_page() -> None:
    for size in (2, 8, 64):
        assert shared_memory._header_bytes(size) % 4096 == 0
        assert shared_memory._header_bytes(size) >= shared_memory.TOKEN_BYTES + 2 * size * shared_memory.COUNTER_BYTES
