"""What one rank finds out for all, and how all learn that it could not."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch.distributed as dist

from conf.errors import ConfigError
from tests.train_core.conftest import Worlds
from train_core.job.failures import failure_of, lost_a_peer
from train_core.parallel.collectives import Axis
from train_core.process.world import World, result_of_first


def asked_of_all(world: World) -> int:
    return result_of_first(os.getpid, Axis(world.size, world.rank))


def test_all_ranks_get_what_the_first_one_finds(worlds: Worlds) -> None:
    first, second = worlds(2).run(asked_of_all)
    assert first == second


def found_after_three_signs(world: World) -> int:
    """What the first rank finds once it has said three times that it still searches."""
    signs, broadcast = threading.Semaphore(0), dist.broadcast_object_list

    def counted(*arguments: Any) -> None:
        broadcast(*arguments)
        signs.release()

    def find() -> int:
        return sum(signs.acquire() for _ in range(3))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("train_core.process.world.SIGN_SECONDS", 0.01)
        patched.setattr(dist, "broadcast_object_list", counted)
        return result_of_first(find, Axis(world.size, world.rank))


def test_the_others_hear_of_a_long_search_before_torch_gives_up_waiting(worlds: Worlds) -> None:
    assert worlds(2).run(found_after_three_signs) == [3, 3]


class Odd(Exception):
    """An exception that cannot travel: it is not made of one argument."""

    def __init__(self, one: object, two: object) -> None:
        super().__init__(lambda: None)


def complaint(world: World, error: Exception | None) -> tuple[str, bool, int | None]:
    """What a rank raises, whether it is taken for the consequence of another's failure, and whom it blames.

    `error` is None for an odd one.
    """

    def refuse() -> None:
        raise Odd(1, 2) if error is None else error

    with pytest.raises((ConfigError, OSError, Odd, RuntimeError)) as raised:
        result_of_first(refuse, Axis(world.size, world.rank))
    assert asked_of_all(world) > 0, "the ranks are still in step"
    failure = failure_of(world.rank, raised.value)
    return failure.cause, lost_a_peer(failure), failure.blamed


def test_an_error_for_people_is_raised_on_every_rank(worlds: Worlds) -> None:
    told = ("data.path = 'x': is missing. Name another.", False, None)
    assert worlds(2).run(complaint, ConfigError("data.path", "x", "is missing", "Name another.")) == [told, told]


def test_any_other_error_reaches_all_and_the_first_rank_is_the_culprit(worlds: Worlds) -> None:
    said = "OSError: [Errno 28] No space left on device"
    answers = worlds(2).run(complaint, OSError(28, "No space left on device"))
    assert answers == [(said, False, 0), (f"RuntimeError: rank 0 failed: {said}", True, 1)]
    (first, *_), (second, *_) = worlds(2).run(complaint, None)
    assert first.startswith("Odd: ")
    assert second == f"RuntimeError: rank 0 failed: {first}"
