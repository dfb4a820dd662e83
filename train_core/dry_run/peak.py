"""The fullest moment of a step, and what memory holds in it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from torch import Tensor

from train_core.dry_run.meter import Block, Meter
from train_core.dry_run.record import StageBytes


class Kinds:
    """Sorts memory by what it holds.

    What lives when the rank has been built is state. Of the rest, activations are what a forward pass leaves behind for
    a backward pass, communication is what was filled by others and has not been taken by a forward pass, logits are
    recognized by their shape, (..., V/t), storages that are emptied and refilled hold weights that ZeRO-3 gathers, and
    anything else is working memory.
    """

    def __init__(self, meter: Meter, weights: Iterable[Tensor], vocabulary: int) -> None:
        """`vocabulary` is what one tensor rank holds of it."""
        self.weights, self.gradients = _addresses(weights), set[int]()
        self.built, self.vocabulary, self.meter = len(meter.events), vocabulary, meter

    def at_peak(self, gradients: Iterable[Tensor]) -> StageBytes:
        """Bytes by kind at the fullest moment since the rank was built.

        Args:
            gradients: those that are there after the step.
        """
        self.gradients = _addresses(gradients)
        live = list(accumulate(self.meter.events))
        peak = max(range(self.built, len(live)), key=live.__getitem__)
        held = dict.fromkeys(StageBytes.model_fields, 0)
        for block in self.meter.blocks:
            if block.born <= peak and (block.freed is None or block.freed > peak):
                held[self._kind_of(block, peak)] += block.num_bytes
        return StageBytes(**held)

    def _kind_of(self, block: Block, now: int) -> str:
        if block.address in self.weights:
            return "weights_bytes"
        if block.address in self.gradients and (block.born < self.built or block.is_passing or block.freed is None):
            return "gradients_bytes"
        if block.born < self.built:
            return "optimizer_bytes"
        if block.shape[-1:] == (self.vocabulary,):
            return "logits_bytes"
        if block.is_passing or (block.is_filled and (block.taken is None or block.taken > now)):
            return "communication_bytes"
        if block.in_backward or not self._outlives_its_forward(block):
            return "working_bytes"
        return "activations_bytes"

    def _outlives_its_forward(self, block: Block) -> bool:
        events = self.meter.backward_events
        following = bisect_right(events, block.born)
        return following < len(events) and (block.freed is None or block.freed > events[following])


def _addresses(tensors: Iterable[Tensor]) -> set[int]:
    """Of storages that last as long as the rank."""
    return {tensor.untyped_storage()._cdata for tensor in tensors}
