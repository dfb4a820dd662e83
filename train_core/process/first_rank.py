"""Facts that one rank finds out for all of them, such as what lies on a file system."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch.distributed as dist

from conf.errors import TrisweepError
from train_core.parallel.collectives import Axis

Found = TypeVar("Found")
SIGN_SECONDS = 60.0
"""The seconds between signs that the first rank searches: well within the time that torch lets a collective wait."""


def result_of_first(find: Callable[[], Found], axis: Axis) -> Found:
    """Return what the axis's first rank finds out; where it fails, all ranks do. All call it.

    Ranks that each looked for themselves could find different things: a shared file system shows a new file to one
    node earlier than to another. The clock is not told, because the search may take longer than a collective may.

    Raises:
        TrisweepError: on every rank, where the first one raised it.
        RuntimeError: on the others, where the first one raised another exception; it has the same words.
    """
    if axis.size == 1:
        return find()
    search = _SearchThread(find) if axis.rank == 0 else None
    source = 0 if axis.group is None else dist.get_global_rank(axis.group, 0)
    told: list[tuple[Any, Exception | None] | None] = [None]
    # A search may take longer than torch lets a collective wait, so that the others hear of it now and then.
    while told[0] is None:
        told[0] = search.answer(SIGN_SECONDS) if search is not None else None
        dist.broadcast_object_list(told, source, axis.group)
    found, refusal = told[0]
    if refusal is not None:
        # The first rank raises what it caught, whose traceback leads to the cause.
        raised = (search.failed if search is not None else None) or refusal
        if isinstance(raised, TrisweepError):  # all raise it now, and it is no rank's own fault
            raised.blamed = getattr(raised, "blamed", None)
        raise raised
    return cast("Found", found)


class _SearchThread:
    """The first rank's search, in a thread of its own; the process may end before it has found anything."""

    def __init__(self, find: Callable[[], Any]) -> None:
        self.find = find
        self.failed: BaseException | None = None
        self.told: tuple[Any, Exception | None] | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.told = self.find(), None
        except BaseException as error:  # whatever ends the thread, or the others would wait for ever
            self.failed = error
            words = f"rank 0 failed: {type(error).__name__}: {error}"
            # The error is pickled on its way to the others, which only our own are known to survive.
            self.told = None, error if isinstance(error, TrisweepError) else RuntimeError(words)

    def answer(self, seconds: float) -> tuple[Any, Exception | None] | None:
        """The result and the error of the search; None if there is neither after this time."""
        self.thread.join(seconds)
        return self.told
