"""From where each rank stands to the one that all wait for."""

from __future__ import annotations

from typing import Any

from train_core.trial.measurement import DISK, Standing
from train_core.watch.hang import explain

AT_WORK: dict[str, Any] = {"operation": None, "line": "", "number": 0, "ranks": ()}


def standing(rank: int, **values: Any) -> Standing:
    """A rank that waits in the second collective over data with ranks 0 to 3, unless told otherwise."""
    told: dict[str, Any] = {
        "rank": rank,
        "step": 7,
        "micro_batch": None,
        "operation": "all_reduce over data, 512 KiB",
        "line": "data",
        "number": 2,
        "ranks": (0, 1, 2, 3),
        "reached": {"data": 2},
        "seconds": 600.2,
        "stack": "",
    }
    return Standing(**told | values)


def receiving(rank: int, peer: int) -> Standing:
    words = f"receive from rank {peer}, 8 KiB"
    return standing(rank, operation=words, line="pipeline", number=0, ranks=(peer,), micro_batch=3, reached={})


def hang(*standings: Standing) -> tuple[str, int | None]:
    return tuple(explain(standings[0], {one.rank: one for one in standings}.get))  # type: ignore[return-value]


def test_the_rank_that_has_not_started_the_collective_is_blamed() -> None:
    absent = standing(3, **AT_WORK, reached={"data": 1})
    assert hang(standing(0), standing(1), standing(2), absent) == (
        "rank 3 has not reached all_reduce over data, 512 KiB (step 7); ranks 0-2 have been waiting there"
        " for 600 s, and rank 3 is at its own work",
        3,
    )


def test_a_rank_that_says_nothing_gives_no_sign_of_life() -> None:
    cause, blamed = hang(standing(0), standing(1), standing(3))
    assert cause.endswith("ranks 0-1, 3 have been waiting there for 600 s, and rank 2 gives no sign of life")
    assert blamed == 2


def test_a_rank_that_started_the_collective_and_works_on_meanwhile_is_not_blamed() -> None:
    ahead = standing(1, **AT_WORK, reached={"data": 2})
    assert hang(standing(0), ahead, standing(2), standing(3, **AT_WORK, reached={"data": 1}))[1] == 3


def test_a_rank_whose_device_is_still_to_take_up_what_it_started_is_followed_to_whom_it_waits_for() -> None:
    """As four ranks of two stages stood on an H200, of which the last was stopped: hosts start ahead of their GPUs."""
    started = {"data": 13, "pipeline": 9}
    first = standing(0, number=11, ranks=(0, 1), reached=started)
    second = receiving(1, 3).model_copy(update={"reached": started})
    beside_the_stopped = standing(2, number=13, ranks=(2, 3), reached=started)
    cause, blamed = hang(first, second, beside_the_stopped)
    assert blamed == 3
    assert cause.startswith("rank 3 has not sent what rank 1 is to receive, 8 KiB (step 7, micro-batch 3); rank 1 has")
    assert cause.endswith("and rank 3 gives no sign of life")


def test_waits_are_followed_through_the_pipeline_to_who_waits_for_nobody() -> None:
    cause, blamed = hang(receiving(0, 1), receiving(1, 2), standing(2, **AT_WORK))
    assert blamed == 2
    assert cause.startswith(
        "rank 2 has not sent what rank 1 is to receive, 8 KiB (step 7, micro-batch 3); rank 1 has been waiting there"
    )


def test_of_a_send_the_other_end_has_not_taken_it() -> None:
    sending = receiving(0, 1).model_copy(update={"operation": "send to rank 1, 8 KiB"})
    cause, blamed = hang(sending, standing(1, **AT_WORK))
    assert cause.startswith("rank 1 has not taken what rank 0 sends, 8 KiB (step 7, micro-batch 3); rank 0 has been")
    assert blamed == 1


def test_of_two_that_are_missing_the_one_that_waits_for_nobody_is_blamed() -> None:
    late = {"reached": {"data": 1}}
    returning = receiving(2, 0).model_copy(update=late)
    assert hang(standing(0), standing(1), returning, standing(3, **AT_WORK, **late))[1] == 3


def test_ranks_that_wait_for_each_other_are_all_named_and_none_is_blamed() -> None:
    assert hang(receiving(0, 1), receiving(1, 0)) == (
        "ranks 0-1 wait for each other, rank 0 in receive from rank 1, 8 KiB (step 7, micro-batch 3)",
        None,
    )


def test_a_collective_that_all_have_reached_is_the_hardwares() -> None:
    cause, blamed = hang(*(standing(rank) for rank in range(4)))
    assert cause == "all_reduce over data, 512 KiB (step 7) does not end although all its ranks have reached it"
    assert blamed is None


WRITING = {"operation": "writing its share of a checkpoint", "line": DISK, "number": 1, "reached": {"checkpoint": 3}}
WRITTEN = {
    "operation": "the end of a checkpoint's files",
    "line": "checkpoint",
    "number": 4,
    "reached": {"checkpoint": 4},
}


def test_the_rank_whose_disk_does_not_answer_is_blamed_by_those_that_have_written() -> None:
    assert hang(standing(0, **WRITTEN), standing(1, **WRITING), standing(2, **WRITTEN), standing(3, **WRITTEN)) == (
        "rank 1 has not reached the end of a checkpoint's files (step 7); ranks 0, 2-3 have been waiting there"
        " for 600 s, and rank 1 is writing its share of a checkpoint",
        1,
    )


def test_the_rank_whose_disk_does_not_answer_blames_itself() -> None:
    cause, blamed = hang(standing(1, **WRITING), standing(0, **WRITTEN), standing(2, **WRITING, seconds=3.0))
    assert cause == "the disk has not answered rank 1 for 600 s in writing its share of a checkpoint (step 7)"
    assert blamed == 1


def test_no_rank_is_blamed_for_a_disk_that_answers_none() -> None:
    cause, blamed = hang(*(standing(rank, **WRITING) for rank in range(4)))
    assert cause.startswith("the disk has not answered ranks 0-3 for 600 s in writing its share")
    assert blamed is None
