"""Copies of what a rank writes, which stay as they are while the training goes on.

On a GPU a stream of its own copies, so that the step after the save need not wait:

    computing    ... update | forward, backward ........ | update ...      waits here, if the copies are not made yet
    copying                 | copies into pinned memory |
    writer (host)           | waits for the copies ..... | writes .....
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from train_core.checkpoints.boxes import Box
from train_core.optimizers.optimizer import Optimizer, State

Wait = Callable[[], object]


def nothing_to_wait_for() -> None:
    """On a CPU a copy is made when the call returns."""


class HostCopies:
    """Copies of one rank's boxes. Those of a GPU lie in memory that is kept from save to save."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._buffers: dict[tuple[int, str], Tensor] = {}
        self._stream: torch.cuda.Stream | None = None

    def of(self, boxes: Sequence[list[Box]]) -> tuple[dict[str, Any], Wait]:
        """The boxes' copies, and what the thread that reads them has to call first.

        The copies of the last call must be read no more.
        """
        states = self.optimizer.states
        if self.optimizer.device.type != "cuda":
            # copy=True, or what lies on the CPU already would come back uncopied, and the next update would change it.
            return pieces_of(states, boxes, lambda box, flat: box.of(flat).to("cpu", copy=True)), nothing_to_wait_for
        return self._queue_copies(boxes)

    def _queue_copies(self, boxes: Sequence[list[Box]]) -> tuple[dict[str, Any], Wait]:
        device = self.optimizer.device
        self._stream = self._stream or torch.cuda.Stream(device)
        # The copies come after the update that the computing stream may still have before it ...
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            pieces = self._start_copies(boxes)
        # Blocking, so that the thread that waits sleeps, and leaves its core to the training.
        done = torch.cuda.Event(blocking=True)
        done.record(self._stream)

        def wait_once() -> None:
            """Have the stream that computes wait, and not the host."""
            torch.cuda.current_stream(device).wait_event(done)
            self.optimizer.wait_for_copies = nothing_to_wait_for

        # ... and before the next update.
        self.optimizer.wait_for_copies = wait_once
        return pieces, done.synchronize

    def _start_copies(self, boxes: Sequence[list[Box]]) -> dict[str, Any]:
        """Start one copy for each flat tensor, of the run in which its boxes lie; a copy for each box takes longer."""
        copies: dict[int, tuple[int, Tensor]] = {}
        for part, (state, held) in enumerate(zip(self.optimizer.states, boxes, strict=True)):
            if held:
                first = min(box.start for box in held)
                stop = max(box.start + prod(box.sizes) for box in held)
                for kind, flat in state.tensors().items():
                    copy = self._buffer(part, kind, stop - first)
                    copy.copy_(flat[first:stop], non_blocking=True)
                    copies[id(flat)] = first, copy

        def view(box: Box, flat: Tensor) -> Tensor:
            first, copy = copies[id(flat)]
            return box._replace(start=box.start - first).of(copy)

        return pieces_of(self.optimizer.states, boxes, view)

    def _buffer(self, part: int, kind: str, size: int) -> Tensor:
        """Pinned memory, from which and into which a GPU copies by itself. To allocate it takes long, so it is kept."""
        found = self._buffers.get((part, kind))
        if found is None:
            found = self._buffers[part, kind] = pinned_memory(size)
        assert found.numel() == size, "a rank writes the same boxes at every save"
        return found


def pinned_memory(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.float32, pin_memory=True)


class Piece(Tensor):
    """Holds boxes of one tensor of the model, and speaks the protocol of torch.distributed.checkpoint.

    Attributes:
        boxes: views of the rank's own memory, by their offsets in the whole tensor.
        whole: the shape of the whole tensor.
    """

    boxes: dict[torch.Size, Tensor]
    whole: torch.Size

    @staticmethod
    def of(shape: tuple[int, ...], boxes: dict[torch.Size, Tensor]) -> Piece:
        """A piece of a tensor of the given shape."""
        # torch.distributed.checkpoint asks only tensors for their boxes. The data of this one are never read.
        piece: Piece = Tensor._make_subclass(Piece, next(iter(boxes.values())))
        piece.boxes, piece.whole = boxes, torch.Size(shape)
        return piece

    def size(self, dim: int | None = None) -> Any:
        """The size of the whole tensor, with which the sizes in a checkpoint are compared."""
        return self.whole if dim is None else self.whole[dim]

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(name, offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(offsets, box.size()),
                    properties=TensorProperties.create_from_tensor(box),
                    size=self.whole,
                ),
            )
            for offsets, box in self.boxes.items()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(offsets, box.size()) for offsets, box in self.boxes.items()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        assert index.offset is not None
        return self.boxes[index.offset]


def pieces_of(
    states: Sequence[State], boxes: Sequence[list[Box]], view: Callable[[Box, Tensor], Tensor] = Box.of
) -> dict[str, Any]:
    """What torch.distributed.checkpoint reads or writes of a rank's states, by kind and the parameter's global name.

    Args:
        view: gives the elements of a box from the flat tensor that it lies in.
    """
    found: dict[str, tuple[tuple[int, ...], dict[torch.Size, Tensor]]] = {}
    for state, held in zip(states, boxes, strict=True):
        for kind, flat in state.tensors().items():
            for box in held:
                _, of_name = found.setdefault(f"{kind}.{box.name}", (box.shape, {}))
                of_name[torch.Size(box.offsets)] = view(box, flat)
    return {key: Piece.of(shape, of_name) for key, (shape, of_name) in found.items()}


def pieces_of_whole(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Tensors that this rank has whole, by their names in the checkpoint."""
    return {
        name: Piece.of(tuple(tensor.shape), {torch.Size([0] * tensor.dim()): tensor})
        for name, tensor in tensors.items()
    }
