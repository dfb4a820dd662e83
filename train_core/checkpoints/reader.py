"""Reads boxes of a checkpoint, and takes only bytes that are those that were written; and says what lies where in it.

torch.distributed.checkpoint keeps the metadata of tensors as a pickle, and a pickle can name any function of Python and
have it called: it is read without running what somebody may have put into it.
"""

from __future__ import annotations

import io
import pickle
import warnings
import zlib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.futures import Future

from train_core.checkpoints.checkpoint_folder import METADATA, Facts, Unreadable

CLASSES = frozenset(
    {
        *(
            ("torch.distributed.checkpoint.metadata", name)
            for name in (
                "_MEM_FORMAT_ENCODING",
                "BytesStorageMetadata",
                "ChunkStorageMetadata",
                "Metadata",
                "MetadataIndex",
                "StorageMeta",
                "TensorProperties",
                "TensorStorageMetadata",
            )
        ),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch.serialization", "_get_layout"),
        ("torch", "Size"),
        ("collections", "OrderedDict"),
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),  # its module in Python 3.13
    }
)
"""All that such a file names, beside the types of elements. None of them does more than to hold values."""


class _Unpickler(pickle.Unpickler):
    """Refuses every class and function that no such file needs."""

    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or (module, name) in CLASSES:
            return super().find_class(module, name)
        foreign = f"{module}.{name}, which no checkpoint needs: it may be there to run code"
        raise Unreadable(f"has a {METADATA} that names {foreign}")


def read_metadata(checkpoint: Path, facts: Facts) -> Metadata:
    """Read the metadata of the checkpoint's tensors and where they lie.

    Raises:
        Unreadable: it was damaged, or names what it need not.
    """
    try:
        content = (checkpoint / METADATA).read_bytes()
    except OSError as error:
        raise Unreadable(f"has a {METADATA} that cannot be read ({error.strerror})") from None
    # Before it is unpickled, so that damaged bytes are not interpreted at all.
    if zlib.crc32(content) != facts.metadata_crc32:
        raise Unreadable(f"has a {METADATA} that is not as it was written")
    try:
        metadata = _Unpickler(io.BytesIO(content)).load()
    except Unreadable:
        raise
    except Exception as error:  # a pickle that is cut off or changed fails in any way there is
        raise Unreadable(f"has a {METADATA} that cannot be understood ({type(error).__name__}: {error})") from None
    if not isinstance(metadata, Metadata):
        raise Unreadable(f"has a {METADATA} that holds something else than it should")
    return metadata


def saved_shapes(metadata: Metadata) -> dict[str, tuple[int, ...]]:
    """The shapes of the weights, by their names in the whole model."""
    prefix = "weights."
    return {
        key.removeprefix(prefix): tuple(saved.size)
        for key, saved in metadata.state_dict_metadata.items()
        if key.startswith(prefix) and isinstance(saved, TensorStorageMetadata)
    }


class Reader(FileSystemReader):
    """Verifies the checksum of every item that it reads, and of no other: each item of a file has its own."""

    def __init__(self, checkpoint: Path, metadata: Metadata) -> None:
        super().__init__(checkpoint)
        self.metadata = metadata

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return what is known already: reading it anew would run what it names."""
        return self.metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        # Sorted, because `groupby` joins neighbours alone, and so that each file is read from front to back.
        for file, reads in groupby(sorted(plan.items, key=self._place), key=lambda read: self._place(read)[0]):
            try:
                with (Path(self.path) / file).open("rb") as stream:
                    self._read_file(file, stream, reads, planner)
            except OSError as error:
                raise Unreadable(f"has a {file} that cannot be read ({error.strerror})") from None
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _place(self, read: ReadItem) -> tuple[str, int]:
        info = self.storage_data[read.storage_index]
        return info.relative_path, info.offset

    def _read_file(self, file: str, stream: BinaryIO, reads: Iterator[ReadItem], planner: LoadPlanner) -> None:
        # Boxes of this rank may be parts of the same item, which is then read once.
        for _, parts in groupby(reads, key=self._place):
            first, *others = parts
            item = _item(file, stream, self.storage_data[first.storage_index])
            for read in (first, *others):
                target = planner.resolve_tensor(read).detach()
                ranges = zip(read.storage_offsets, read.lengths, strict=True)
                target.copy_(item[tuple(slice(offset, offset + length) for offset, length in ranges)])
                planner.commit_tensor(read, target)


def _item(file: str, stream: BinaryIO, info: Any) -> Tensor:
    stream.seek(info.offset)
    content = stream.read(info.length)
    if len(content) != info.length:
        raise Unreadable(f"has a {file} that ends before byte {info.offset + info.length}")
    if zlib.crc32(content) != info.crc32:
        between = f"bytes {info.offset} to {info.offset + info.length}"
        raise Unreadable(f"has a {file} that is not as it was written ({between} have another checksum)")
    # An item is a pickle too, which could have any function called if more than weights were allowed.
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def read(tensors: dict[str, Any], reader: Reader) -> None:
    """Fill tensors from a checkpoint. All ranks of a job call it, and fail alike.

    Raises:
        Unreadable: a file is damaged; some of the tensors may have been filled.
    """
    try:
        with warnings.catch_warnings():
            # A process that is alone is how a job of one rank, and an export, is meant to be.
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            load(tensors, storage_reader=reader)
    except CheckpointException as error:
        raise first_failure(error, Unreadable)[1] from error


def first_failure(error: CheckpointException, kind: type[Exception]) -> tuple[int, BaseException]:
    """The rank and the error that stand for those of all ranks: the same on each, because all know those of all.

    Args:
        kind: errors that come first, as others follow from them; any other is the first rank's, told by the others.
    """
    failures = [(rank, cause) for rank, (cause, _) in sorted(error.failures.items(), key=lambda failure: failure[0])]
    for rank, cause in failures:
        if isinstance(cause, kind):
            return rank, cause
    rank, cause = failures[0]
    own = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    return rank, cause if rank == own else RuntimeError(f"rank {rank} failed: {type(cause).__name__}: {cause}")
