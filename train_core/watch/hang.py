"""A search for the rank that others wait for: each says where it stands, and the waits lead to the missing one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import NamedTuple

from train_core.trial.measurement import DISK, Standing

TRANSFERS = ("send to ", "receive from ")


class Hang(NamedTuple):
    """The reason why a wait does not end.

    Attributes:
        blamed: the rank that did not arrive; None where all did, or where they wait for each other.
    """

    cause: str
    blamed: int | None


def explain(own: Standing, standing_of: Callable[[int], Standing | None]) -> Hang:
    """Follow the waits from this rank to one that waits for nobody.

    Args:
        standing_of: where another rank stands; None if it does not say, because it is dead or stopped.
    """
    if own.line == DISK:
        return _disk_hang(own, standing_of)
    # The rank that waits need not wait for the culprit itself: rank 0 may wait for rank 1, which waits for rank 2.
    followed, seen = [own], {own.rank}
    for waiting in followed:  # the list grows inside the loop, by the ranks that are waited for
        missing = _missing(waiting, standing_of)
        found = {rank: standing_of(rank) for rank in missing}
        for rank, standing in found.items():
            if standing is None or standing.operation is None or standing.line == DISK:
                return _absent(rank, waiting, standing_of)
        followed += [standing for rank, standing in found.items() if standing is not None and rank not in seen]
        seen |= found.keys()
    # All ranks that were waited for have been followed, and none was found that holds the others up.
    if len(seen) == 1:
        return Hang(f"{_place(own)} does not end although all its ranks have reached it", None)
    return Hang(f"{ranks_text(seen)} wait for each other, rank {own.rank} in {_place(own)}", None)


def _disk_hang(own: Standing, standing_of: Callable[[int], Standing | None]) -> Hang:
    found = [standing for rank in own.ranks if (standing := standing_of(rank)) and standing.line == DISK]
    # Others may be there too and come forward. Those that stand as long as this one have the same trouble.
    stuck = {own.rank} | {standing.rank for standing in found if standing.seconds > own.seconds / 2}
    cause = f"the disk has not answered {ranks_text(stuck)} for {own.seconds:.0f} s in {_place(own)}"
    return Hang(cause, own.rank if len(stuck) == 1 else None)


def _missing(waiting: Standing, standing_of: Callable[[int], Standing | None]) -> list[int]:
    """The ranks that have not started the operation, or else those that stand in another one; for a transfer always the
    other end.

    A GPU's host starts operations ahead of its device: one that it has started may be queued behind what it waits for.
    """
    # All channels of a rank share the name of their axis, so that counts by name say nothing of a transfer.
    if waiting.number == 0:
        return list(waiting.ranks)
    found = {rank: standing_of(rank) for rank in waiting.ranks if rank != waiting.rank}
    not_started = [
        rank
        for rank, standing in found.items()
        if standing is None or standing.reached.get(waiting.line, 0) < waiting.number
    ]
    return not_started or [
        rank
        for rank, standing in found.items()
        if standing and standing.operation and (standing.line, standing.ranks) != (waiting.line, waiting.ranks)
    ]


def _absent(rank: int, waiting: Standing, standing_of: Callable[[int], Standing | None]) -> Hang:
    beside = (standing_of(other) for other in waiting.ranks) if waiting.number else ()
    there = {waiting.rank} | {other.rank for other in beside if other is not None and other.waits_with(waiting)}
    standing = standing_of(rank)
    doing = "gives no sign of life" if standing is None else f"is {standing.operation or 'at its own work'}"
    return Hang(
        f"rank {rank} has not {_undone(waiting)}; {ranks_text(there)}"
        f" {'has' if len(there) == 1 else 'have'} been waiting there for {waiting.seconds:.0f} s,"
        f" and rank {rank} {doing}",
        rank,
    )


def _undone(waiting: Standing) -> str:
    """`reached all_reduce over data, 512 KiB (step 7)`, or `sent what rank 2 is to receive, 8 KiB (step 7)`."""
    kind, _, size = (waiting.operation or "").partition(", ")
    if waiting.number == 0 and kind.startswith(TRANSFERS):
        part = "taken what rank {} sends" if kind.startswith("send") else "sent what rank {} is to receive"
        return f"{part.format(waiting.rank)}, {size} {_when(waiting)}"
    return f"reached {_place(waiting)}"


def _place(waiting: Standing) -> str:
    return f"{waiting.operation} {_when(waiting)}"


def _when(waiting: Standing) -> str:
    micro_batch = "" if waiting.micro_batch is None else f", micro-batch {waiting.micro_batch}"
    return f"(step {waiting.step}{micro_batch})"


def ranks_text(ranks: Iterable[int]) -> str:
    """`rank 3`, or `ranks 0-2, 7`."""
    return counted_text("rank", ranks)


def counted_text(what: str, numbers: Iterable[int]) -> str:
    """`step 3`, or `steps 0-2, 7`."""
    ordered = sorted(set(numbers))
    cuts = [0, *(index for index, (rank, after) in enumerate(pairwise(ordered), 1) if after > rank + 1), len(ordered)]
    runs = [(ordered[first], ordered[end - 1]) for first, end in pairwise(cuts)]
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"{what}{'s' if len(ordered) > 1 else ''} {text}"
