"""The metadata of a checkpoint's tensors, read without running what somebody may have put into the file.

torch.distributed.checkpoint keeps it as a pickle, and a pickle can name any function of Python and have it called.
"""

from __future__ import annotations

import io
import pickle
import zlib
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

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
