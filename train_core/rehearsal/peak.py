"""The fullest moment of a step, and what memory holds in it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from torch import Tensor

from train_core.costs.terms import HELD_KINDS
from train_core.rehearsal.counts import StageBytes
from train_core.rehearsal.observer import Allocation, StepObserver


class MemorySorter:
    """Sorts memory by what it holds.

    What lives when the rank has been built is state. Of the rest, activations are what a forward pass leaves behind for
    a backward pass, communication is what was filled by others and has not been taken by a forward pass, logits are
    recognized by their shape, (..., V/t), storages that are emptied and refilled hold weights that ZeRO-3 gathers, and
    anything else is working memory.
    """

    def __init__(self, observer: StepObserver, weights: Iterable[Tensor], vocabulary: int) -> None:
        """`vocabulary` is how many rows of it one tensor rank holds."""
        self.weights, self.gradients = _addresses(weights), set[int]()
        self.built, self.vocabulary, self.observer = len(observer.events), vocabulary, observer

    def at_peak(self, gradients: Iterable[Tensor]) -> StageBytes:
        """Bytes by kind at the fullest moment since the rank was built.

        Args:
            gradients: those that are there after the step.
        """
        self.gradients = _addresses(gradients)
        live = list(accumulate(self.observer.events))
        peak = max(range(self.built, len(live)), key=live.__getitem__)
        held = dict.fromkeys(HELD_KINDS, 0)
        for allocation in self.observer.allocations:
            if allocation.born <= peak and (allocation.freed is None or allocation.freed > peak):
                held[self._kind_of(allocation, peak)] += allocation.num_bytes
        return StageBytes(**held)

    def _kind_of(self, allocation: Allocation, now: int) -> str:
        if allocation.address in self.weights:
            return "weights_bytes"
        if allocation.address in self.gradients and self._holds_gradients(allocation):
            return "gradients_bytes"
        if allocation.born < self.built:
            return "optimizer_bytes"
        if allocation.shape[-1:] == (self.vocabulary,):
            return "logits_bytes"
        if allocation.is_passing or (allocation.is_filled and (allocation.taken is None or allocation.taken > now)):
            return "communication_bytes"
        if allocation.in_backward or not self._outlives_its_forward(allocation):
            return "working_bytes"
        return "activations_bytes"

    def _holds_gradients(self, allocation: Allocation) -> bool:
        """True if memory at the address of gradients holds them, and not another tensor that was freed before."""
        return allocation.born < self.built or allocation.is_passing or allocation.freed is None

    def _outlives_its_forward(self, allocation: Allocation) -> bool:
        events = self.observer.backward_events
        # What still lives when the next backward pass begins was left behind for it or for a later one.
        following = bisect_right(events, allocation.born)
        return following < len(events) and (allocation.freed is None or allocation.freed > events[following])


def _addresses(tensors: Iterable[Tensor]) -> set[int]:
    """The addresses of storages that last as long as the rank."""
    return {tensor.untyped_storage()._cdata for tensor in tensors}
