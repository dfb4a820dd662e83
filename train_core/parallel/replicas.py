"""The interface of the data axis to the optimizer and the checkpoints, whatever ZeRO shards."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from train_core.bucket_rules import Treatment
from train_core.parallel.boxes import Box


class Replicas(Protocol):
    """This rank's part of what the replicas update together, as a list of flat parts.

    Parts are the rank's shard of every bucket (`data_parallel`), or its rows of every parameter (`fully_sharded`).
    All lists that the methods return have one entry for each part, in the same order.

    Attributes:
        is_sharded: each replica updates another part.
        treatments: how the parameters of each part are treated.
    """

    is_sharded: bool
    treatments: list[Treatment]

    def own_weights(self) -> list[Tensor]:
        """The weights that this rank updates, as views."""
        ...

    def zero_gradients(self) -> None:
        """Begin a step: forget the gradients of the one before."""
        ...

    def reduced_gradients(self) -> list[Tensor]:
        """The gradients of the weights that this rank updates, summed over the replicas."""
        ...

    def share_weights(self) -> None:
        """Have every replica's weights made whole again after each has updated its own part."""
        ...

    def wait_for_weights(self) -> None:
        """Wait until the weights may be read by others than the model's forward passes."""
        ...

    def after_evaluation(self) -> None:
        """Let go what forward passes without backward passes have left."""
        ...

    def boxes(self) -> list[list[Box]]:
        """The boxes of the model's parameters in which the elements of each part lie."""
        ...

    def boxes_to_write(self) -> list[list[Box]]:
        """The boxes that this rank writes into a checkpoint, so that together all ranks write everything once."""
        ...

    def held_weights(self) -> list[Tensor]:
        """All weights that this rank keeps between steps, for those who count memory."""
        ...

    def held_gradients(self) -> list[Tensor]:
        """All gradients that this rank keeps between steps, for those who count memory."""
        ...
