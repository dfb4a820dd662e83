"""Collectives among CPU ranks of one node through memory that they share; gloo would send them through a socket.

A rank shows its tensor in a slot of its own and works on; whoever waits reads the slots of all ranks, in rank order, so
that every rank computes the same sum. Nothing runs in the background, and no core sleeps that has to be woken.

    | token | counters of rank 0, 1, ... | rank 0: slot 0, slot 1 | rank 1: slot 0, slot 1 | ...

The n-th collective lies in slot n % 2 of each rank. A rank's counters say how many collectives it has shown its tensor
to, and how many it has read; a slot is used again when all ranks have read what was in it.
"""

from __future__ import annotations

import mmap
import os
import platform
import secrets
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from train_core.parallel.clock import Line, Operation

NUM_SLOTS = 2
SLOT_BYTES = 16 * 2**20
"""The largest tensor that is shown. A page of a slot takes memory when a tensor first reaches it, not before."""

MOST_KEPT_SLOTS = 64
"""Making a slot a tensor of some shape takes longer than a small sum; experts' shapes may differ in every step."""

COUNTER_BYTES = 64  # a cache line for each, so that no rank's writing disturbs another's reading
TOKEN_BYTES = 64

SPIN_SECONDS, LONGEST_NAP_SECONDS = 0.0002, 0.002
"""A longer spin would keep a core from another rank that needs it. Naps grow with the wait, to a quarter of it."""

Combine = Callable[[Sequence[Tensor], Tensor, int], None]
"""Writes the result of a collective: from what all ranks have shown, in rank order, where to, and for which rank."""


class SharedMemory:
    """The memory that the ranks of one group share. They start the same collectives in the same order.

    Attributes:
        shown: each rank's counter of the latest collective to which it has shown its tensor.
        read: likewise, of which it has read all.
    """

    def __init__(self, memory: mmap.mmap, rank: int, size: int, timeout: timedelta | None) -> None:
        self.rank, self.size = rank, size
        self.timeout_seconds = inf if timeout is None else timeout.total_seconds()
        self.bytes = torch.frombuffer(memory, dtype=torch.uint8)
        # Aligned numbers of 64 bits are written at once, so that no other rank reads half of one.
        counters = memoryview(memory)[TOKEN_BYTES : TOKEN_BYTES + 2 * size * COUNTER_BYTES].cast("q")
        self.shown, self.read = (counters[kind * COUNTER_BYTES // 8 :: 2 * COUNTER_BYTES // 8] for kind in range(2))
        self.num_started = self.num_read = 0
        self.unread: deque[Shown] = deque()
        self.slots: dict[tuple[int, torch.dtype, torch.Size], list[Tensor]] = {}

    @classmethod
    def of(
        cls, ranks: Sequence[int], rank: int, group: dist.ProcessGroup, timeout: timedelta | None
    ) -> SharedMemory | None:
        """New memory for the ranks of a group, which all call this.

        None for all of them where one cannot reach the memory of the first.

        Args:
            timeout: after this time a wait for another rank fails; None waits for ever.
        """
        # Only x86 lets every rank see what another one writes in the order in which it was written.
        if dist.get_backend(group) != "gloo" or (sys.platform, platform.machine()) != ("linux", "x86_64"):
            return None
        num_bytes = _header_bytes(len(ranks)) + len(ranks) * NUM_SLOTS * SLOT_BYTES
        offer = Offer.of_new_memory(num_bytes) if rank == ranks[0] else None  # the first makes it, the others map it
        told = [offer]
        dist.broadcast_object_list(told, ranks[0], group)
        assert told[0] is not None
        memory = told[0].memory(num_bytes)
        reached = [False] * len(ranks)
        # All ranks have to agree: one that sent messages while others looked into memory would wait for ever.
        dist.all_gather_object(reached, memory is not None, group)
        if offer is not None:  # all who can have mapped the memory by now, and a mapping needs no descriptor
            os.close(offer.descriptor)
        return cls(memory, ranks.index(rank), len(ranks), timeout) if memory is not None and all(reached) else None

    def takes(self, tensor: Tensor) -> bool:
        return 0 < tensor.nbytes <= SLOT_BYTES

    def start(self, kind: str, tensor: Tensor, into: Tensor, line: Line | None, combine: Combine | None) -> Shown:
        """Let all ranks read `tensor`; when all have shown theirs, whoever waits combines them.

        Args:
            line: is told of the wait until what lies in the slot has been read; None where nobody listens.
            combine: None for the kinds that `COMBINE` has.
        """
        if min(self.read) < self._reused:
            if line is None:
                self._make_room()
            else:
                line.clock.wait(Operation(kind, line, line.num_started + 1, into.nbytes), self._make_room)
        self.num_started += 1
        shown = Shown(self, self.num_started, self._slots_like(tensor), into, combine or COMBINE[kind])
        # First the tensor, then the counter: whoever sees the counter may read the tensor.
        shown.slots[self.rank].copy_(tensor)
        self.shown[self.rank] = shown.number
        self.unread.append(shown)
        return shown

    @property
    def _reused(self) -> int:
        """The collective in whose slot the next one will lie."""
        return self.num_started + 1 - NUM_SLOTS

    def _make_room(self) -> None:
        # Read what is in the slot before waiting for others to: if all only waited, nobody's slot would become free.
        self.read_until(self._reused)
        self._await(self._reused, self.read)

    def read_until(self, number: int) -> None:
        """Combine what has been shown, up to collective `number`."""
        while self.num_read < number:
            shown = self.unread.popleft()
            self._await(shown.number, self.shown)
            shown.combine(shown.slots, shown.into, self.rank)
            self.num_read = self.read[self.rank] = shown.number

    def _await(self, number: int, counters: memoryview[int]) -> None:
        """Wait until all ranks have shown or read collective `number`."""
        start = time.monotonic()
        while min(counters) < number:
            os.sched_yield()  # the rank that is waited for may need this very core
            if (seconds := time.monotonic() - start) > SPIN_SECONDS:
                time.sleep(min(LONGEST_NAP_SECONDS, seconds / 4))
            if seconds > self.timeout_seconds:
                raise TimeoutError(f"Timed out waiting {seconds:.0f} s for another rank")

    def _slots_like(self, tensor: Tensor) -> list[Tensor]:
        """The slots of all ranks for the collective that was started last, each as a tensor of this type and shape."""
        key = self.num_started % NUM_SLOTS, tensor.dtype, tensor.shape
        if key not in self.slots:
            if len(self.slots) >= MOST_KEPT_SLOTS:
                self.slots.clear()
            starts = (_header_bytes(self.size) + (rank * NUM_SLOTS + key[0]) * SLOT_BYTES for rank in range(self.size))
            self.slots[key] = [
                self.bytes[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape) for start in starts
            ]
        return self.slots[key]


@dataclass(eq=False, slots=True)
class Shown:
    """A collective in shared memory."""

    memory: SharedMemory
    number: int
    slots: Sequence[Tensor]
    into: Tensor
    combine: Combine

    def wait(self) -> bool:
        self.memory.read_until(self.number)
        return True

    def is_completed(self) -> bool:
        return self.memory.num_read >= self.number


def _sum(shown: Sequence[Tensor], out: Tensor, rank: int) -> None:
    # In rank order on every rank: sums that differ in their last bit would let replicated weights drift apart.
    torch.add(shown[0], shown[1], out=out)
    for tensor in shown[2:]:
        out += tensor


def _concatenate(shown: Sequence[Tensor], out: Tensor, rank: int) -> None:
    torch.cat(list(shown), out=out)


def _sum_of_shares(shown: Sequence[Tensor], out: Tensor, rank: int) -> None:
    _sum([tensor.chunk(len(shown))[rank] for tensor in shown], out, rank)


COMBINE: dict[str, Combine] = {"all_reduce": _sum, "all_gather": _concatenate, "reduce_scatter": _sum_of_shares}
"""By the kind of a collective."""


class Offer(NamedTuple):
    """The address of new memory for other processes. It vanishes with the last process that uses it.

    The memory has no name in a file system, where a kill would leave it behind. It is reached through the descriptor
    that the process holds, and the token tells it from that of an unrelated process with the same number.
    """

    process: int
    descriptor: int
    token: bytes

    @classmethod
    def of_new_memory(cls, num_bytes: int) -> Offer:
        offer = cls(os.getpid(), os.memfd_create("trisweep"), secrets.token_bytes(TOKEN_BYTES))
        os.truncate(offer.descriptor, num_bytes)
        os.pwrite(offer.descriptor, offer.token, 0)
        return offer

    def memory(self, num_bytes: int) -> mmap.mmap | None:
        """The memory; None on another node or in another container, where another process has this number."""
        try:
            descriptor = os.open(f"/proc/{self.process}/fd/{self.descriptor}", os.O_RDWR)
        except OSError:
            return None
        try:
            is_meant = os.pread(descriptor, TOKEN_BYTES, 0) == self.token
            return mmap.mmap(descriptor, num_bytes) if is_meant else None
        except OSError:
            return None
        finally:
            os.close(descriptor)


def _header_bytes(size: int) -> int:
    """The bytes of token and counters, in whole pages."""
    pages = -(-(TOKEN_BYTES + 2 * size * COUNTER_BYTES) // mmap.PAGESIZE)
    return pages * mmap.PAGESIZE
