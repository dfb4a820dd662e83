"""A rank's pieces of the model's tensors, as torch.distributed.checkpoint asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from train_core.optimizer.adam import AdamState
from train_core.parallel.boxes import Box


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


Views = dict[str, tuple[tuple[int, ...], dict[torch.Size, Tensor]]]
"""By kind and the parameter's global name: its shape, and boxes of it by their offsets."""


def pieces_of(states: Sequence[AdamState], boxes: Sequence[list[Box]]) -> dict[str, Any]:
    """The boxes of a rank's states, as views."""
    return pieces_of_views(views_of(states, boxes, Box.of))


def views_of(states: Sequence[AdamState], boxes: Sequence[list[Box]], view: Callable[[Box, Tensor], Tensor]) -> Views:
    """The results of `view` for each box and the flat tensor that it lies in."""
    views: Views = {}
    for state, held in zip(states, boxes, strict=True):
        for kind, flat in state.tensors().items():
            for box in held:
                _, of_name = views.setdefault(f"{kind}.{box.name}", (box.shape, {}))
                of_name[torch.Size(box.offsets)] = view(box, flat)
    return views


def pieces_of_views(views: Views) -> dict[str, Any]:
    """The dictionary that torch.distributed.checkpoint reads or writes."""
    return {key: Piece.of(shape, of_name) for key, (shape, of_name) in views.items()}
